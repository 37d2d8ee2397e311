"""What the parsers of all commands share: help texts, types of arguments, common options."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from steppe.utils import validation

_INDENT = "  "


class Parser(argparse.ArgumentParser):
    """A parser without reformatted help texts, abbreviated options and long error messages.

    Abbreviations could change their meaning when an option is added.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print the error and where help is, without the usage, which may fill a screen."""
        self.exit(2, f"{self.prog}: error: {message}\nSee {self.prog} --help.\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print an error about unknown arguments, with the nearest option."""
        known = [text for action in self._actions for text in action.option_strings]
        near = difflib.get_close_matches(words[0].partition("=")[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "leave it out."
        self.error(f"{' '.join(words)}: is not a known argument; {hint}")


def typed(arguments: argparse.Namespace) -> dict[str, str]:
    """The options that were typed, by the names of their arguments.

    Examples:
        >>> parser = Parser()
        >>> parser.set_defaults(parser=parser)
        >>> action = parser.add_argument("--burn-in", default=0)
        >>> typed(parser.parse_args(["--burn-in", "5"])), typed(parser.parse_args([]))
        ({'burn_in': '--burn-in'}, {})
    """
    return {
        action.option_strings[-1].removeprefix("--").replace("-", "_"): action.option_strings[-1]
        for action in arguments.parser._actions
        if action.option_strings
        and action.dest in arguments
        and getattr(arguments, action.dest) != action.default
    }


def new_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    purpose: str,
    examples: str,
    details: str = "",
) -> Parser:
    """Add a command with its help and its examples.

    Args:
        commands: from `add_subparsers`.
        name: what the user types.
        run: takes the parsed arguments and returns the exit code.
        purpose: one line, for the list of commands too.
        examples: command lines, one each line.
        details: more help.

    Returns:
        The parser, for its arguments.
    """
    lines = "\n".join(f"{_INDENT}{line}" for line in examples.strip().splitlines())
    new: Parser = commands.add_parser(
        name,
        help=purpose[0].lower() + purpose[1:].rstrip("."),
        description=f"{purpose}\n\n{details.strip()}" if details else purpose,
        epilog=f"examples:\n{lines}",
    )
    new.set_defaults(run=run, parser=new)
    return new


def new_group(commands: Any, name: str, *, purpose: str, examples: str) -> Any:
    """Add a command that has commands of its own.

    Args:
        commands: from `add_subparsers`.
        name: what the user types.
        purpose: one line.
        examples: command lines, one each line.

    Returns:
        Where its commands are added.
    """

    def help_of_the_group(_: argparse.Namespace) -> int:
        new.print_help()
        return 0

    new = new_command(commands, name, help_of_the_group, purpose=purpose, examples=examples)
    return new.add_subparsers(metavar="COMMAND", title="commands")


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that every command with a result has."""
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON, for other programs"
    )


def add_run_folder(parser: argparse.ArgumentParser) -> None:
    """Add `--run` of commands that begin a run, as `folder`."""
    parser.add_argument(
        "--run",
        dest="folder",
        type=path,
        metavar="FOLDER",
        help="folder of the run (default: a new folder under runs/)",
    )


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add `--isolation`; None where it is not given."""
    parser.add_argument(
        "--isolation",
        choices=("proven", "each", "probed"),
        help="how to ensure that a record's gradient depends on that record alone: proven from "
        "the operations (default); each record in its own pass; or only probed with synthetic "
        "values",
    )


def add_burn_in(parser: argparse.ArgumentParser) -> None:
    """Add `--burn-in` of commands that read stored checkpoints."""
    parser.add_argument(
        "--burn-in",
        type=step_number,
        default=0,
        metavar="STEP",
        help="ignore checkpoints up to this step",
    )


def add_test(parser: argparse.ArgumentParser) -> None:
    """Add `--test` of commands that measure on held-out records."""
    parser.add_argument(
        "--test",
        metavar="DATA",
        help="measure on these records, which have targets (default: the run's held-out part)",
    )


def require_writable(name: str, file: Path) -> None:
    """Check that a file can be created, before anything is computed for it."""
    if file.is_dir():
        raise validation.fail(name, file, "is a folder", "name a file in it")
    if not file.parent.is_dir():
        rule = f"there is no folder {str(file.parent)!r}"
        raise validation.fail(name, file, rule, "make it first, or choose another")


def path(text: str) -> Path:
    """The path of a file or folder. Empty text, as from an unset shell variable, is an error.

    >>> path("runs/first").name
    'first'
    """
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("'' is not a file or folder; write it like runs/first")
    return Path(text)


def whole_number(text: str) -> int:
    """A whole number, `60000` or `60_000`.

    >>> whole_number("60_000")
    60000
    """
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number; write it like 60000"
        ) from None


def step_number(text: str) -> int:
    """A step of a run, counted from 0.

    >>> step_number("600")
    600
    """
    step = whole_number(text)
    if step < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a step; count from 0")
    return step


def real_number(text: str) -> float:
    """A number such as `0.5` or `1e-5`.

    >>> real_number("1e-5")
    1e-05
    """
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number; write it like 0.5 or 1e-5"
        ) from None


def several(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A list with commas, whose parts have one type.

    >>> several(whole_number)("1,28,28")
    (1, 28, 28)
    """

    def parse(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(","))

    return parse


def count_or_names(text: str) -> int | list[str]:
    """A number, or a list of names.

    >>> count_or_names("3"), count_or_names("no,yes")
    (3, ['no', 'yes'])
    """
    if "," in text:
        return text.split(",")
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is only one name; name at least two, like no,yes, or give their number"
        ) from None


def column_and_texts(text: str) -> tuple[str, list[str]]:
    """A column and its categories, from `COLUMN=A,B,…`.

    >>> column_and_texts("sex=f,m")
    ('sex', ['f', 'm'])
    """
    column, equals, texts = text.partition("=")
    if not (column and equals and texts):
        raise argparse.ArgumentTypeError(f"{text!r} has no texts; write it like sex=f,m")
    return column, texts.split(",")


def column_and_range(text: str) -> tuple[str, tuple[float, float]]:
    """A column and its lowest and highest value, from `COLUMN=LOW,HIGH`.

    `LOW,HIGH` alone is for all columns, and then the column is the empty text.

    >>> column_and_range("age=0,120"), column_and_range("0,1")
    (('age', (0.0, 120.0)), ('', (0.0, 1.0)))
    """
    column, _, ends = text.rpartition("=")
    values = several(real_number)(ends)
    if len(values) != 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a pair of numbers; write it like age=0,120, or 0,1 for all columns"
        )
    return column, values


def low_and_high(text: str) -> tuple[float, float]:
    """The lowest and highest value, from `LOW,HIGH`.

    >>> low_and_high("0,500000")
    (0.0, 500000.0)
    """
    values = several(real_number)(text)
    if len(values) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pair of numbers; write it like 0,100")
    return values[0], values[1]


def named(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a class and its numeric arguments, from `NAME:KEY=VALUE,…`.

    >>> named("StepSchedule:drop=0.6,every=290")
    ('StepSchedule', {'drop': 0.6, 'every': 290})
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        options[key] = _number(f"{name}.{key}", value)
    return name, options


def _number(name: str, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise validation.fail(name, text, "must be a number", "write it like 0.01") from None
