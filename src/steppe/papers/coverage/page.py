"""`docs/results/README.md`: a row for every table and figure, written from the stored runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from steppe.papers import catalogue, runner
from steppe.papers.coverage import dp_sat, dp_swa, dpadapter, recycling, weight_decay
from steppe.papers.coverage.item import Item, filled
from steppe.papers.results import Results
from steppe.utils.files import in_turn, write_atomically

PAPERS: Mapping[str, Sequence[Item]] = {
    paper.TITLE: paper.ITEMS for paper in (dp_swa, recycling, dpadapter, dp_sat, weight_decay)
}
NAME = "README.md"
_DONE, _SHORTENED, _NOT_RUN, _NOTHING = "done", "shortened", "not run", "no result to run"
_HEAD = """# What reproduces

A row for every table and figure of the five papers. *Done* has the paper's own scale, *shortened*
says what is smaller, *not run* says why. Numbers here are written from the stored runs by `steppe
papers overview`: means with 95 % intervals by Student's t over seeds, or the numbers of both seeds
where there are two. Runs are seeded, and therefore NOT PRIVATE. `steppe papers run NAME` does the
runs that are missing; the linked pages have the tables, the figures and the conclusions.
"""


def text(folder: Path) -> str:
    """The page, from the runs stored in a folder."""
    parts = []
    for title, items in PAPERS.items():
        lines = ["| item | state | the paper | here | command |", "|---|---|---|---|---|"]
        lines += [_row(item, folder)[1] for item in items]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    found = counts(folder)
    said = ", ".join(f"{count} {state}" for state, count in found.items())
    return f"{_HEAD}\nOf {sum(found.values())} rows: {said}.\n\n" + "\n".join(parts)


def counts(folder: Path) -> dict[str, int]:
    """How many rows there are in each state."""
    states = [_row(item, folder)[0] for items in PAPERS.values() for item in items]
    return {state: states.count(state) for state in (_DONE, _SHORTENED, _NOT_RUN, _NOTHING)}


def write(folder: Path) -> Path:
    """Write the page into the folder of results; its path."""
    page = folder / NAME
    folder.mkdir(parents=True, exist_ok=True)
    with in_turn(folder):
        write_atomically(page, text(folder).encode(), 0o644)
    return page


def rewritten(folder: Path) -> Path | None:
    """Write the page again where the folder has it; its path if it changed."""
    page = folder / NAME
    if not page.exists() or page.read_text(encoding="utf-8") == text(folder):
        return None
    return write(folder)


def _row(item: Item, folder: Path) -> tuple[str, str]:
    if item.experiment is None:
        state = _NOT_RUN if item.result else _NOTHING
        return state, _line(item, f"{state}: {item.why_not}", "–", "–")
    experiment = catalogue.find(item.experiment)
    results = Results(experiment, folder)
    runs = results.current()
    came = filled(item, experiment, runs)
    command = f"`steppe papers run {item.experiment}`"
    left = runner.missing(results, runner.RunFilter())
    needed = sum(runner.expected_seconds(experiment, runs, setting) for setting, _ in left)
    if came is None:
        how = f"; {item.shortened}" if item.shortened else ""
        state = f"{_NOT_RUN} yet: about {runner.duration(needed)} of one core{how}"
        return _NOT_RUN, _line(item, state, "–", command)
    state = _SHORTENED if item.shortened else _DONE
    shown = f"{state}: {item.shortened}" if item.shortened else state
    if left:
        shown += f"; {len(left)} of {len(experiment.pairs())} runs are left"
    return state, _line(item, shown, came, command)


def _line(item: Item, state: str, came: str, command: str) -> str:
    name = f"[{item.name}]({item.link})" if item.link else item.name
    return f"| {name} | {state} | {item.says} | {came} | {command} |"
