"""The command line of benchmarks that store every (setting, seed) as it ends."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from steppe.papers import runner
from steppe.papers.experiment import Experiment
from steppe.papers.results import Results
from steppe.papers.summary import table

RESULTS = Path(__file__).parent / "results"


def run(
    experiment: Experiment, module: str, description: str | None, argv: Sequence[str] | None
) -> tuple[Results, int]:
    """Run what is missing of an experiment.

    Args:
        experiment: what can be run.
        module: `python -m benchmarks.MODULE` is what was typed.
        description: for `--help`.
        argv: the arguments; those of the process unless given.

    Returns:
        Everything stored so far, and how many runs are missing because the time was used up.
    """
    # Where results go decides nothing and names this machine, so it is no part of the command.
    where = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    where.add_argument("--results", type=Path, default=RESULTS)
    place, typed = where.parse_known_args(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}", description=description, parents=[where]
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="all unless given")
    parser.add_argument("--settings", nargs="+", help="all unless given")
    parser.add_argument("--minutes", type=float, help="begin no run that would end later")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(typed)
    torch.set_num_threads(arguments.threads)
    results = Results(experiment, place.results)
    choice = runner.RunFilter(arguments.seeds, arguments.settings, arguments.minutes)
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *typed])
    left = runner.run(results, choice, command, lambda text: print(text, flush=True))
    return results, left


def show(
    experiment: Experiment, module: str, description: str | None, argv: Sequence[str] | None
) -> int:
    """`run`, and then the table of everything stored.

    Returns:
        The exit status: 0, or 3 where the time was used up first.
    """
    results, left = run(experiment, module, description, argv)
    print(table(experiment, results.current()))
    return 3 if left else 0
