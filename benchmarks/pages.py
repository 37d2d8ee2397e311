"""Tables of accuracies on the pages, written from the stored runs.

`python -m benchmarks.pages` rewrites them in README.md, docs/defaults.md and
docs/results/no-public-data.md. A page marks the place of a table:

    <!-- table of defaults -->
    <!-- end of defaults -->
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import defaults, patch_features, patches_head
from benchmarks.published import FIGURES
from benchmarks.stored import RESULTS
from steppe.papers.experiment import ExperimentRun
from steppe.papers.results import Results

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/defaults.md", "docs/results/no-public-data.md")
NAMES = {
    "cifar10": "CIFAR-10",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    patch_features.COARSE: "CIFAR-100, coarse",
}
_SEEDS = 5
_BLOCK = "<!-- table of {name} -->\n{text}<!-- end of {name} -->"
Runs = Sequence[ExperimentRun]


def compared(runs: Runs) -> str:
    """The default beside other recipes of this library."""
    rows = [["data", "ε", "patches", "scattering", "26k CNN", "Opacus example"]]
    for data, epsilon in _budgets():
        cells = [mean(runs, data, epsilon, recipe) for recipe in defaults.RECIPES]
        rows.append([NAMES[data], f"{epsilon:g}", *cells])
    return _markdown(rows)


def beside_published(runs: Runs) -> str:
    """The default beside what others have published."""
    rows = [["data", "ε", "accuracy in %", "published: accuracy in % (ε)"]]
    for data, epsilon in _budgets():
        near = [figure for figure in FIGURES if figure.data == data]
        near = [figure for figure in near if epsilon - 0.5 <= figure.epsilon <= epsilon + 0.2]
        words = [f"{100 * f.accuracy:.4g} ({f.epsilon:g}), {f.source}" for f in near]
        own = mean(runs, data, epsilon, defaults.PATCHES)
        rows.append([NAMES[data], f"{epsilon:g}", own, "; ".join(words) or "–"])
    return _markdown(rows)


def averages(runs: Runs) -> str:
    """The last iterate and the averages that every run keeps."""
    columns = {
        "last": "last",
        "EMA": "EMA",
        "SWA": "SWA",
        "Window": "UPA",
        "PolynomialDecay": "PDA",
    }
    rows = [["data", "ε", *columns.values()]]
    for data, epsilon in _budgets():
        cells = [mean(runs, data, epsilon, defaults.PATCHES, key) for key in columns]
        if cells[0] != "–":
            rows.append([NAMES[data], f"{epsilon:g}", *cells])
    return _markdown(rows)


def held_out(runs: Runs) -> str:
    """Accuracy on held-out training records by the factor r."""
    rows = [
        ["data", "steps", "ε", *(f"r = {f:g}" for f in patches_head.FACTORS), "EMA of the best"]
    ]
    for run in runs:
        steps, data = str(run.constants["steps"]), NAMES[run.constants["data"]]
        rows += [[data, steps, *cells] for cells in patches_head.cells(run)]
    return _markdown(rows)


TABLES: Mapping[str, tuple[str, Callable[[Runs], str]]] = {
    "defaults": ("defaults", compared),
    "published": ("defaults", beside_published),
    "averages": ("defaults", averages),
    "held-out": ("patches-head", held_out),
}


def mean(runs: Runs, data: str, epsilon: float, recipe: str, key: str = "accuracy") -> str:
    """Mean ± standard deviation over seeds in %, and how many seeds where they are not five."""
    found = defaults.percents(runs, data, epsilon, recipe, key)
    if not found:
        return "–"
    if len(found) == 2:  # two seeds have no interval
        return " / ".join(f"{score:.2f}" for score in found) + ", 2 seeds"
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 2 else ""
    many = f", {len(found)} seed{'s' if len(found) > 1 else ''}"
    return f"{statistics.fmean(found):.2f}{spread}{'' if len(found) == _SEEDS else many}"


def filled(page: str, runs: Mapping[str, Runs]) -> str:
    """A page with its tables as they follow from the stored runs.

    Args:
        page: its text.
        runs: by experiment.
    """
    for name, (experiment, table) in TABLES.items():
        place = re.compile(_BLOCK.format(name=name, text=".*?"), re.DOTALL)
        block = _BLOCK.format(name=name, text=f"\n{table(runs[experiment])}\n\n")
        page = place.sub(lambda _, block=block: block, page)  # type: ignore[misc]
    return page


def stored_runs() -> dict[str, Runs]:
    """What is stored, by experiment."""
    experiments = (defaults.experiment(), patches_head.experiment())
    return {found.name: Results(found, RESULTS).current() for found in experiments}


def _budgets() -> list[tuple[str, float]]:
    return [(data, epsilon) for data in NAMES for epsilon in defaults.BUDGETS[data]]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(rows[0])
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def main() -> int:
    """Rewrite the tables of all pages."""
    runs = stored_runs()
    for name in PAGES:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = filled(old, runs)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"{name}: rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
