"""Tables and figures on the pages of results, written from what is stored.

A page marks the place with two comments, and keeps the words around them:

    <!-- results of dp-sat-toy -->
    <!-- end of dp-sat-toy -->
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from steppe.papers import runner
from steppe.papers.experiment import ExperimentRun
from steppe.papers.results import Results
from steppe.papers.summary import FEWEST_SEEDS, table, verdicts
from steppe.utils.files import in_turn, write_atomically

_BLOCK = "<!-- results of {name} -->\n{text}<!-- end of {name} -->"


def refresh(results: Results) -> list[Path]:
    """Rewrite an experiment's place on every page beside its results.

    Args:
        results: what is stored.

    Returns:
        The pages that changed.
    """
    name = results.experiment.name
    place = re.compile(
        _BLOCK.format(name=re.escape(name), text=".*?"),
        re.DOTALL,
    )
    changed = []
    for page in sorted(results.folder.glob("*.md")):
        with in_turn(results.folder):  # experiments share a page, and may end at the same moment
            old = page.read_text(encoding="utf-8")
            new = place.sub(lambda _: _BLOCK.format(name=name, text=block(results)), old)
            if new != old:
                mode = stat.S_IMODE(page.stat().st_mode)  # people have written it too
                write_atomically(page, new.encode(), mode)
                changed.append(page)
    return changed


def _seeds(runs: Sequence[ExperimentRun]) -> str:
    seeds = sorted({run.seed for run in runs})
    if not seeds:
        return ""
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f" (seeds {seeds[0]} to {seeds[-1]})"
    return f" (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"


def _time(runs: Sequence[ExperimentRun]) -> str:
    """All runs together, one after the other, and on how many threads."""
    total = runner.duration(sum(run.seconds for run in runs))
    threads = sorted({run.threads for run in runs})
    if not threads:
        return total
    many = "s" if threads[-1] > 1 else ""
    return f"{total} in all on {' or '.join(map(str, threads))} thread{many}"


def block(results: Results) -> str:
    """What stands between the two comments."""
    experiment, runs = results.experiment, results.current()
    command = f"`python -m steppe.papers run {experiment.name}`"
    left = runner.missing(results, runner.RunFilter())
    needed = sum(runner.expected_seconds(experiment, runs, setting) for setting, _ in left)
    status = f"{command}: {len(runs)} runs{_seeds(runs)}, {_time(runs)}"
    if left:
        status += f"; {len(left)} are left, about {runner.duration(needed)}"
    parts = [f"{status}.", f"Expected: {experiment.expected}."]
    if runs:
        parts.append(table(experiment, runs))
        if max(Counter(run.setting for run in runs).values()) == FEWEST_SEEDS - 1:
            parts.append("With two seeds, the table has the numbers of both.")
    lines = verdicts(experiment, runs)
    if lines:
        base = "" if experiment.baseline is None else f" to {experiment.baseline}"
        what = f"differences{base}" if base or experiment.rivals else "numbers"
        said = "\n".join(f"- {line}" for line in lines)
        parts.append(f"Where the 95 % intervals of the {what} lie:\n\n{said}")
    if runs and results.picture.exists():
        parts.append(f"![{experiment.item}]({results.picture.name})")
    return "\n" + "\n\n".join(parts) + "\n\n"
