"""The `steppe` command: finds the command, runs it and returns an exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TextIO

from steppe.cli import (
    average,
    budget,
    cite,
    data,
    demo,
    export,
    flatness,
    inspect,
    ledger,
    noise,
    papers,
    plan,
    predict,
    pretrain,
    report,
    resume,
    train,
)
from steppe.cli.parsing import Parser, typed
from steppe.errors import DataWarning, PrivacyWarning, SteppeError
from steppe.utils import validation

# 70 is what sysexits.h calls an error of the software itself; Python's own 1 means a failed check.
OK, BAD_INPUT, BUG, INTERRUPTED = 0, 2, 70, 130

_COMMANDS = (
    demo,
    train,
    resume,
    pretrain,
    budget,
    plan,
    noise,
    inspect,
    average,
    predict,
    export,
    flatness,
    report,
    ledger,
    cite,
    data,
    papers,
)
_EPILOG = """\
examples:
  steppe demo
  steppe train --data mnist --epsilon 2
  steppe budget --population 60000 --batch-size 2048 --epochs 20 --epsilon 2 --delta 1e-5

exit codes:
  0 done, 1 a check failed or work is left, 2 bad input, 70 a bug in steppe, 130 interrupted
"""


def parser() -> Parser:
    """The parser of the whole command line; making it imports no heavy package."""
    top = Parser(
        prog="steppe",
        description="Train PyTorch models under differential privacy.",
        epilog=_EPILOG,
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in _COMMANDS:
        command.add(commands)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        words: the command line without the program's name; None for the process's own.

    Returns:
        0 done, 1 a check failed or work is left, 2 bad input, 70 a bug in steppe, whose traceback
        is printed, 130 interrupted.

    Examples:
        >>> main(["cite", "--methods", "no-such-method"])
        2
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PrivacyWarning)
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = _shown_once()
            code = _run(words)
            sys.stdout.flush()
            return code
    except SteppeError as error:
        return _complain(str(error))
    except BrokenPipeError:
        # The reader has ended, as in `steppe … | head`. The interpreter must not flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        said = error.strerror or str(error)
        if error.filename is None:
            return _complain(said)
        remedy = "check that it exists and that you have access"
        return _complain(f"file={str(error.filename)!r}: {said}; {remedy}.")
    except KeyboardInterrupt as stop:
        print(f"steppe: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        return BUG


def _run(words: Sequence[str] | None) -> int:
    top = parser()
    try:
        arguments, unknown = top.parse_known_args(words)
        if unknown:
            getattr(arguments, "parser", top).refuse(unknown)
    except SystemExit as stop:  # argparse has printed the help (0) or what is wrong (2)
        return int(stop.code or OK)
    if arguments.version:
        from importlib.metadata import version

        print(f"steppe {version('steppe')}")
        return OK
    if arguments.command is None:
        top.print_help()
        return OK
    with validation.called(typed(arguments)):
        return int(arguments.run(arguments))


def _complain(message: str) -> int:
    print(f"steppe: error: {message}", file=sys.stderr)
    return BAD_INPUT


def _shown_once() -> Callable[..., None]:
    """Shows each warning once. Python's "once" counts each line that warns."""
    shown: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            print(f"steppe: warning: {message}", file=sys.stderr)

    return show
