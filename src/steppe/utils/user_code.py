"""Users' own code by `module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from traceback import walk_tb
from typing import Any

from steppe.errors import SteppeError
from steppe.utils import validation


def made_by(place: str, what: str) -> Any:
    """What the user's factory returns.

    Args:
        place: `module:factory`; the module may lie in the current folder.
        what: the argument's name, for messages.
    """
    module_name, _, name = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, and a console script does not
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:  # about code alone, so that it may be quoted
        raise validation.fail(
            what,
            place,
            f"cannot be imported: {type(error).__name__}: {error}",
            "write module:factory, and run where `import module` works",
        ) from error
    except Exception as error:  # the user's code may raise anything
        rule = f"cannot be imported: {_kind_and_place(error, module_name)}"
        raise validation.fail(what, place, rule, _how_to_see(f"import {module_name}")) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise validation.fail(what, place, f"{module_name} has no {name!r}", "write module:factory")
    if not callable(factory):
        raise validation.fail(what, place, "is not a function", "name a function without arguments")
    try:
        return factory()
    except SteppeError:
        raise
    except Exception as error:  # the user's code may raise anything
        rule = f"raised {_kind_and_place(error, module_name)}"
        how = _how_to_see(f"import {module_name}; {module_name}.{name}()")
        raise validation.fail(what, place, rule, how) from error


def level() -> int:
    """Where a warning of the function that calls this is to point, as `stacklevel`: at the line of
    the user's that led to it, through however many of the library's own."""
    count, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        count, frame = count + 1, frame.f_back
    return count


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "steppe"


def kind_and_line(error: Exception) -> str:
    """The error's type, and the last line of the user's own code that it came through.

    Its words may quote a record: they are left to a traceback. Where no code of the user's was
    running, the line is the one that raised it.
    """
    lines = _lines(error)
    own = [line for line, module in lines if module.partition(".")[0] not in ("steppe", "torch")]
    return f"{type(error).__name__} at {own[-1] if own else lines[-1][0]}"


def _kind_and_place(error: Exception, module: str) -> str:
    """The error's type, and the last line of the user's module that it came through.

    Its words may quote a record: they are left to the traceback of the cause.
    """
    lines = [line for line, name in _lines(error) if name == module]
    # A function that needs arguments fails before its first line.
    return f"{type(error).__name__} at {lines[-1] if lines else 'the call without arguments'}"


def _lines(error: Exception) -> list[tuple[str, str]]:
    """The lines that an error came through, the raising one last, each with its module's name."""
    return [
        (f"{Path(frame.f_code.co_filename).name}:{line}", frame.f_globals.get("__name__", ""))
        for frame, line in walk_tb(error.__traceback__)
    ]


def _how_to_see(code: str) -> str:
    return f'see the whole error with python -c "{code}"'
