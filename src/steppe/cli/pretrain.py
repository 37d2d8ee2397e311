"""`steppe pretrain`: a noise-tolerant start from public data."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing
from steppe.utils import validation

_EXAMPLES = """
steppe pretrain pre.toml
steppe pretrain pre.toml --run runs/pre
steppe pretrain --resume runs/pre
"""
_DETAILS = """
Training without privacy, on public records alone. The run's folder contains the configuration, the
log, checkpoints, and start.safetensors, which private training begins with:
[model] start = "runs/pre/start.safetensors". Ctrl-C stops after the current step.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "pretrain",
        run,
        purpose="Train a start on public data, without privacy.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    new.add_argument("config", nargs="?", type=parsing.path, metavar="CONFIG", help="a TOML file")
    parsing.add_run_folder(new)
    new.add_argument(
        "--resume", type=parsing.path, metavar="RUN", help="continue the run in this folder"
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the result."""
    from steppe.cli.outcomes import is_terminal
    from steppe.cli.printing import print_json
    from steppe.pretraining import read_pretraining, resume_pretraining

    quiet = None if is_terminal() else False
    if (arguments.config is None) == (arguments.resume is None):
        raise validation.missing("CONFIG", "name a TOML file, or give --resume RUN, not both")
    if arguments.resume is not None:
        if arguments.folder is not None:
            rule = "cannot be given together with --resume"
            raise validation.fail("--run", arguments.folder, rule, "leave it out")
        outcome = resume_pretraining(arguments.resume, progress=quiet)
    else:
        outcome = read_pretraining(arguments.config).run(arguments.folder, progress=quiet)
    if arguments.json:
        print_json(outcome.to_dict())
    else:
        print(outcome)
    return 0
