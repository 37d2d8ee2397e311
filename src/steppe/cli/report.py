"""`steppe report`: one self-contained HTML page for a run or a comparison of runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json

_EXAMPLES = """
steppe report runs/first
steppe report runs/first runs/second --out comparison.html
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "report",
        run,
        purpose="One HTML page for a run, or for a comparison of several.",
        details="The page needs no network: open it in any browser. It shows scores on the data "
        "given for\nevaluation, which ε does not cover. You decide whether they may be published.",
        examples=_EXAMPLES,
    )
    new.add_argument("runs", nargs="+", type=parsing.path, metavar="RUN", help="folders of runs")
    new.add_argument(
        "--out",
        type=parsing.path,
        metavar="FILE",
        help="the page to write (default: report.html in the run's folder, or here for several)",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    from steppe.report import write

    runs, out = arguments.runs, arguments.out
    if out is None:
        out = (runs[0] if len(runs) == 1 else Path()) / "report.html"
    path = write(runs, out)
    if arguments.json:
        print_json({"report": str(path), "runs": [str(folder) for folder in runs]})
    else:
        print(path)
    return 0
