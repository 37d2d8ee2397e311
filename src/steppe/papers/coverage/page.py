"""`docs/results/README.md`: a row for every table and figure, written from the stored runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steppe.papers import catalogue, runner
from steppe.papers.coverage import dp_sat, dp_swa, dpadapter, recycling, weight_decay
from steppe.papers.coverage.item import Item, agrees, filled
from steppe.papers.results import Results
from steppe.utils.files import in_turn, write_atomically

PAPERS: Mapping[str, Sequence[Item]] = {
    paper.TITLE: paper.ITEMS for paper in (dp_swa, recycling, dpadapter, dp_sat, weight_decay)
}
NAME = "README.md"
_STATES = _DONE, _SHORTENED, _NOT_RUN, _NOTHING = "done", "shortened", "not run", "no result to run"
_VERDICTS = ("yes", "undecided", "no")
_HEAD = """# What reproduces

A row for every table and figure of the five papers. *Done* has the paper's own scale, *shortened*
says what is smaller, *not run* says why. *Agrees* is yes where the 95 % intervals of all that the
paper says is larger than something else are on its side of zero, no where one is on the other side,
and undecided where one contains zero or there are fewer than three seeds. It is about the direction
alone: how far the numbers lie from the paper's is in the columns after it.

`steppe papers overview` writes this page from the stored runs: means with 95 % intervals by
Student's t over seeds, or the numbers of both seeds where there are two. Runs are seeded, and
therefore NOT PRIVATE. `steppe papers run NAME` does the runs that are missing, and `steppe papers
list` says how long they take; the linked pages have the tables, the figures and the conclusions.
"""


def text(folder: Path) -> str:
    """The page, from the runs stored in a folder."""
    rows = {title: [_row(item, folder) for item in items] for title, items in PAPERS.items()}
    states = Counter(row.state for own in rows.values() for row in own)
    verdicts = Counter(row.agrees for own in rows.values() for row in own)
    parts = [
        f"{_HEAD}\nOf {states.total()} rows: {_counted(states, _STATES)}.\nOf those that were run "
        f"and claim that something is larger: {_counted(verdicts, _VERDICTS)}.\n"
    ]
    for title, own in rows.items():
        lines = ["| item | state | agrees | the paper | here | command |", "|---" * 6 + "|"]
        parts.append(f"## {title}\n\n" + "\n".join([*lines, *(row.text for row in own)]) + "\n")
    return "\n".join(parts)


def _counted(found: Counter[str], names: Sequence[str]) -> str:
    return ", ".join(f"{found[name]} {name}" for name in names)


def counts(folder: Path) -> dict[str, int]:
    """How many rows there are in each state."""
    states = [_row(item, folder).state for items in PAPERS.values() for item in items]
    return {state: states.count(state) for state in _STATES}


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


@dataclass(frozen=True)
class _Row:
    state: str
    agrees: str
    text: str


def _row(item: Item, folder: Path) -> _Row:
    if item.experiment is None:
        state = _NOT_RUN if item.result else _NOTHING
        return _line(item, state, f"{state}: {item.why_not}", "", "–", "–")
    experiment = catalogue.find(item.experiment)
    results = Results(experiment, folder)
    runs = results.current()
    came = filled(item, experiment, runs)
    command = f"`steppe papers run {item.experiment}`"
    left = runner.missing(results, runner.RunFilter())
    if came is None:
        how = f"; {item.shortened}" if item.shortened else ""
        shown = f"{_NOT_RUN} yet{how}"
        return _line(item, _NOT_RUN, shown, "", "–", command)
    state = _SHORTENED if item.shortened else _DONE
    shown = f"{state}: {item.shortened}" if item.shortened else state
    if left:
        shown += f"; {len(left)} of {len(experiment.pairs())} runs are left"
    return _line(item, state, shown, agrees(item, runs), came, command)


def _line(item: Item, state: str, shown: str, verdict: str, came: str, command: str) -> _Row:
    name = f"[{item.name}]({item.link})" if item.link else item.name
    cells = (name, shown, verdict or "–", item.says, came, command)
    return _Row(state, verdict, f"| {' | '.join(cells)} |")
