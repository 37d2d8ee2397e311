"""The speed of private steps in this tree against that of another commit, by turns in one run.

`python -m benchmarks.against --before PATH` lets this tree and the one in PATH (a worktree of an
earlier commit, with its kernels built) run their own `benchmarks.clipping` in turn, a process each.
Both measure private training beside plain training of the same moment, so their ratios compare.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import machine, today
from benchmarks.set_up import BEFORE, NOW, ROOT, commit_of

RESULTS = Path(__file__).parent / "results" / "against.json"
MODELS = "a,c,d,e,f,g"
ENGINES = "plain,steppe"
Ratios = dict[str, float]


def ratios(tree: Path, models: str, rounds: int) -> Ratios:
    """Ratio to plain training of each model (and batch), measured by the tree itself."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        paths = os.pathsep.join((str(tree / "src"), os.environ.get("PYTHONPATH", "")))
        typed = [sys.executable, "-m", "benchmarks.clipping", "--models", models]
        typed += ["--engines", ENGINES, "--rounds", str(rounds), "--output", str(output)]
        subprocess.run(  # ends with 1 where a bar is missed, which is not the question here
            typed, env={**os.environ, "PYTHONPATH": paths}, cwd=tree, check=False
        )
        rows = json.loads(output.read_text())["rows"]
    ours = [row for row in rows if row["engine"] == "steppe"]
    return {f"{row['model']} ({row['batch']})": row["ratio"] for row in ours}


def compared(now: Sequence[Ratios], before: Sequence[Ratios]) -> dict[str, dict[str, Any]]:
    """For each model the ratios of both trees, and the median of what they are of each other.

    Examples:
        >>> compared([{"c (128)": 1.0}, {"c (128)": 0.9}], [{"c (128)": 0.8}, {"c (128)": 0.9}])
        {'c (128)': {'now': [1.0, 0.9], 'before': [0.8, 0.9], 'now over before': 1.125}}
    """
    found = {}
    for model in now[0]:
        mine, theirs = ([turn[model] for turn in turns] for turns in (now, before))
        middle = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
        found[model] = {NOW: mine, BEFORE: theirs, "now over before": round(middle, 3)}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="a worktree to compare with")
    parser.add_argument("--turns", type=int, default=3, help="of each tree (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="in each turn (default: 5)")
    parser.add_argument("--models", default=MODELS, metavar="a,b,…", help=f"default: {MODELS}")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args(argv)
    trees = {NOW: ROOT, BEFORE: arguments.before.resolve()}
    found: dict[str, list[Ratios]] = {name: [] for name in trees}
    for turn in range(arguments.turns):
        for name in trees if turn % 2 == 0 else reversed(trees):
            found[name].append(ratios(trees[name], arguments.models, arguments.rounds))
    models = compared(found[NOW], found[BEFORE])
    said = [f"--models={arguments.models}", f"--turns={arguments.turns}"]
    command = ["python", "-m", "benchmarks.against", "--before=PATH", *said]
    stored = {
        "date": today(),
        "command": shlex.join([*command, f"--rounds={arguments.rounds}"]),
        "machine": machine(),
        "commits": {name: commit_of(tree) for name, tree in trees.items()},
        "ratio to plain training": models,
    }
    arguments.output.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    for model, row in models.items():
        print(f"{model:<24} {row}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
