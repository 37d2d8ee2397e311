"""`steppe resume`: continue a run that was stopped."""

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
        purpose="Continue a run that was stopped.",
        details="Training continues from the last checkpoint, with fresh randomness. Steps that "
        "were charged\nafter it are lost, since their cost cannot be taken back. Configuration and "
        "data must be the same.",
        examples="steppe resume runs/first",
    )
    new.add_argument("folder", type=parsing.path, metavar="RUN", help="folder of the run")
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Resume, and print the table."""
    from steppe.cli.outcomes import is_terminal, print_outcome
    from steppe.training import resume

    quiet = {} if is_terminal() else {"progress": False}
    print_outcome(resume(arguments.folder, **quiet), arguments.json)
    return 0
