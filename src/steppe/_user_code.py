"""Users' own code by `module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from steppe import _validate
from steppe.errors import SteppeError


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
    except Exception as error:  # the user's code may raise anything
        raise _validate.fail(
            what,
            place,
            f"cannot be imported: {type(error).__name__}: {error}",
            "write module:factory, and run where `import module` works",
        ) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise _validate.fail(what, place, f"{module_name} has no {name!r}", "write module:factory")
    if not callable(factory):
        raise _validate.fail(what, place, "is not a function", "name a function without arguments")
    try:
        return factory()
    except SteppeError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise _validate.fail(
            what,
            place,
            f"raised {type(error).__name__}: {error}",
            "call it in Python to see where; it is called without arguments",
        ) from error
