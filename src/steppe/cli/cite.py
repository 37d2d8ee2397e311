"""`steppe cite`: the papers behind a run, as BibTeX."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json
from steppe.utils import validation

_EXAMPLES = """
steppe cite runs/first
steppe cite --methods SAT,EMA
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "cite",
        run,
        purpose="The papers behind a run, as BibTeX.",
        details="The mechanism and the accountant are always cited.",
        examples=_EXAMPLES,
    )
    what = new.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", nargs="?", type=parsing.path, metavar="RUN", help="folder of a run")
    what.add_argument(
        "--methods",
        type=parsing.several(str),
        metavar="NAMES",
        help="classes instead of a run, such as SAT,EMA",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Print the entries."""
    if arguments.methods is not None:
        from steppe.citations import bibtex_of

        entries = bibtex_of(arguments.methods)
    else:
        entries = _of_run(arguments.folder)
    if arguments.json:
        print_json({"bibtex": entries})
    else:
        print(entries)
    return 0


def _of_run(folder: Path) -> str:
    path = folder / "result.json"
    try:
        return str(json.loads(path.read_text())["citation"])
    except OSError as error:
        rule = f"its result.json cannot be read ({error.strerror})"
        raise validation.fail("run", folder, rule, "name a run that has ended") from None
    except (ValueError, KeyError, TypeError):
        raise validation.fail(
            "run", folder, "its result.json holds no citation", "name a run that has ended"
        ) from None
