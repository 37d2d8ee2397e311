"""`steppe papers`: tables and figures of the papers as commands."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.printing import print_json

if TYPE_CHECKING:
    from steppe.papers import Results

_EXAMPLES = """
steppe papers list
steppe papers run dp-sat-toy
steppe papers show dp-sat-toy
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    own = parsing.new_group(
        commands,
        "papers",
        purpose="Tables and figures of the papers: list, run, show, overview.",
        examples=_EXAMPLES,
    )
    listing = parsing.new_command(
        own,
        "list",
        run_list,
        purpose="All experiments, with stored and missing runs.",
        examples="steppe papers list",
    )
    running = parsing.new_command(
        own,
        "run",
        run_run,
        purpose="Do the missing runs of an experiment, then show it.",
        details="Each run is stored when it ends. The command continues where it stopped. The "
        "exit code\nis 1 if --minutes were used up before everything was run.",
        examples="steppe papers run dp-sat-toy --seeds 0,1 --minutes 10",
    )
    showing = parsing.new_command(
        own,
        "show",
        run_show,
        purpose="Table and figure of an experiment, from stored runs.",
        examples="steppe papers show dp-sat-toy",
    )
    covering = parsing.new_command(
        own,
        "overview",
        run_overview,
        purpose="A row for every table and figure of the papers, from stored runs.",
        details="Written to README.md in the folder of results. `papers run` and `papers show` "
        "keep it up to\ndate where it exists.",
        examples="steppe papers overview",
    )
    for command in (running, showing):
        command.add_argument("name", metavar="NAME", help="a name from `steppe papers list`")
    running.add_argument(
        "--seeds",
        type=parsing.several(parsing.whole_number),
        metavar="0,1,…",
        help="default: the experiment's own",
    )
    running.add_argument(
        "--settings", action="append", metavar="NAME", help="once for each; default: all"
    )
    running.add_argument(
        "--minutes", type=parsing.real_number, metavar="N", help="start no run that would end later"
    )
    for command in (listing, running, showing, covering):
        command.add_argument(
            "--results",
            type=parsing.path,
            default=Path("docs") / "results",
            metavar="FOLDER",
            help="where results are stored (default: docs/results)",
        )
        parsing.add_json(command)


def run_list(arguments: argparse.Namespace) -> int:
    """Print the experiments."""
    from steppe.papers import Results, catalogue, listed, runner

    if not arguments.json:
        print(listed(arguments.results))
        return 0
    rows = []
    for experiment in catalogue.experiments():
        left = runner.missing(Results(experiment, arguments.results), runner.RunFilter())
        rows.append(
            {
                "name": experiment.name,
                "paper": experiment.paper,
                "item": experiment.item,
                "runs": len(experiment.pairs()),
                "left": len(left),
            }
        )
    print_json({"experiments": rows})
    return 0


def run_run(arguments: argparse.Namespace) -> int:
    """Run what is missing."""
    from steppe.papers import runner

    results = _results(arguments)
    choice = runner.RunFilter(arguments.seeds, arguments.settings, arguments.minutes)
    left = runner.run(results, choice, _typed(arguments), _print_progress)
    _print_results(results, arguments.json)
    return 1 if left else 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print what is stored."""
    _print_results(_results(arguments), arguments.json)
    return 0


def run_overview(arguments: argparse.Namespace) -> int:
    """Write the page of all items, and print where it is."""
    from steppe.papers import coverage

    page = coverage.write(arguments.results)
    counts = coverage.counts(arguments.results)
    if arguments.json:
        print_json({"page": str(page), **counts})
    else:
        print(f"{page}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    return 0


def _results(arguments: argparse.Namespace) -> Results:
    from steppe.papers import Results, catalogue

    return Results(catalogue.find(arguments.name), arguments.results)


def _print_results(results: Results, as_json: bool) -> None:
    from steppe.papers import shown

    text = shown(results)  # draws the figure too
    if as_json:
        experiment = results.experiment
        print_json(
            {
                "name": experiment.name,
                "paper": experiment.paper,
                "item": experiment.item,
                "expected": experiment.expected,
                "runs": [asdict(run) for run in results.current()],
            }
        )
    else:
        print(text)


def _typed(arguments: argparse.Namespace) -> str:
    """The command line that repeats these runs."""
    words = ["steppe", "papers", "run", arguments.name]
    if arguments.seeds is not None:
        words += ["--seeds", ",".join(map(str, arguments.seeds))]
    for setting in arguments.settings or ():
        words += ["--settings", setting]
    return shlex.join(words)


def _print_progress(text: str) -> None:
    """Print progress to standard error, since the result may be JSON."""
    print(text, file=sys.stderr, flush=True)
