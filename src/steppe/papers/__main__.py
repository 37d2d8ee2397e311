"""`python -m steppe.papers list | run NAME | show NAME`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from steppe.errors import SteppeError
from steppe.papers import catalogue, pages, runner
from steppe.papers.experiment import Experiment
from steppe.papers.results import Results
from steppe.papers.summary import aligned, table

RESULTS = Path("docs") / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, call, print.

    Returns:
        0, or 1 after an error, or 3 where the time was used up before everything was run.
    """
    typed = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(typed)
    folder: Path = arguments.results
    try:
        if arguments.command == "list":
            print(listed(folder))
            return 0
        results = Results(catalogue.find(arguments.name), folder)
        left = 0
        if arguments.command == "run":
            choice = runner.Choice(arguments.seeds, arguments.settings, arguments.minutes)
            command = shlex.join(["python", "-m", "steppe.papers", *typed])
            left = runner.run(results, choice, command, lambda text: print(text, flush=True))
        print(shown(results))
        return 3 if left else 0
    except SteppeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def shown(results: Results) -> str:
    """The table; draws the figure and rewrites the pages of results from what is stored."""
    experiment, runs = results.experiment, results.current()
    lines = [
        f"{experiment.paper}: {experiment.item}",
        f"expected: {experiment.expected}",
        "",
        table(experiment, runs) if runs else "nothing stored yet",
    ]
    if runs and experiment.figure is not None:
        experiment.figure(runs).savefig(results.picture, dpi=120)
        lines += ["", f"figure: {results.picture}"]
    lines += [f"page: {page}" for page in pages.refresh(results)]
    return "\n".join(lines)


def listed(folder: Path) -> str:
    """All experiments, what is stored in the folder and how long the rest takes."""
    rows = [["experiment", "stored", "left", "what"]]
    for experiment in catalogue.experiments():
        rows.append(_row(experiment, Results(experiment, folder)))
    return aligned(rows)


def _row(experiment: Experiment, results: Results) -> list[str]:
    left = runner.missing(results, runner.Choice())
    runs = results.current()
    seconds = sum(runner.expected_seconds(experiment, runs, setting) for setting, _ in left)
    stored = f"{len(experiment.pairs()) - len(left)} of {len(experiment.pairs())}"
    return [experiment.name, stored, runner.duration(seconds) if left else "–", experiment.item]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m steppe.papers", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all experiments, what is stored and what is left")
    run = commands.add_parser("run", help="run what is missing, then show it")
    show = commands.add_parser("show", help="table and figure from what is stored")
    for command in (run, show):
        command.add_argument("name", help="as `list` prints it")
    run.add_argument("--seeds", type=_seeds, metavar="0,1,…", help="default: the experiment's")
    run.add_argument(
        "--settings", action="append", metavar="NAME", help="once for each; default: all"
    )
    run.add_argument("--minutes", type=float, metavar="N", help="begin no run that ends later")
    return parser


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
