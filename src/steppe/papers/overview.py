"""What is stored, as text for the screen: of all experiments, and of one."""

from __future__ import annotations

from pathlib import Path

from steppe.papers import catalogue, coverage, pages, runner
from steppe.papers.experiment import Experiment
from steppe.papers.results import Results
from steppe.papers.summary import aligned, table


def listed(folder: Path) -> str:
    """All experiments, what is stored in the folder and how long the rest takes."""
    rows = [["experiment", "stored", "left", "what"]]
    for experiment in catalogue.experiments():
        rows.append(_row(experiment, Results(experiment, folder)))
    # Results are not part of the installed package: elsewhere than in a checkout there are none.
    found = "" if any(folder.glob("*.json")) else ", where there are none; --results names another"
    return f"{aligned(rows)}\n\nresults are looked for in {folder.resolve()}{found}"


def shown(results: Results) -> str:
    """The table; draws the figure and rewrites the pages from what is stored, the overview too."""
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
    changed = [*pages.refresh(results), coverage.rewritten(results.folder)]
    lines += [f"page: {page}" for page in changed if page is not None]
    return "\n".join(lines)


def _row(experiment: Experiment, results: Results) -> list[str]:
    left = runner.missing(results, runner.RunFilter())
    runs = results.current()
    seconds = sum(runner.expected_seconds(experiment, runs, setting) for setting, _ in left)
    stored = f"{len(experiment.pairs()) - len(left)} of {len(experiment.pairs())}"
    return [experiment.name, stored, runner.duration(seconds) if left else "–", experiment.item]
