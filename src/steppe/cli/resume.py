"""`steppe resume`: go on with a run that was stopped."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "resume",
        run,
        purpose="Go on with a run that was stopped.",
        details="From its last checkpoint, with fresh randomness. Steps that were charged after "
        "it are\nlost, since their cost cannot be taken back. Another configuration or other data "
        "are refused.",
        examples="steppe resume runs/first",
    )
    new.add_argument("folder", type=parsing.path, metavar="RUN", help="folder of the run")
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Resume, and print the table."""
    from steppe.cli.outcomes import print_outcome, watched
    from steppe.training import resume

    quiet = {} if watched() else {"progress": False}
    print_outcome(resume(arguments.folder, **quiet), arguments.json)
    return 0
