"""A table or figure of a paper, and the sentence that the stored runs write about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.papers.experiment import Column, Experiment, ExperimentRun
from steppe.papers.summary import Interval, interval, printed

_PLACE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\}")
_PLAIN = "{:.3g}"
_LESS = " − "


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper.

    Args:
        name: such as "Table 1".
        says: what the paper says, in short.
        experiment: the name of the one that measures it; None where there is none.
        link: the page of results, with its section.
        shortened: how the experiment is smaller than the paper's; nothing where it is not.
        came: what came out, with `{setting|column}` for numbers of stored runs. `{a − b|column}` is
            a difference paired by seed, `{setting|a − b}` one of two columns of the same runs, and
            `column > key` looks into a stored list or table.
        claims: what the paper says lies above zero, as (setting, column) in the words of `came`.
        why_not: why nothing was run, where there is no experiment.
        result: False for drawings and lists of constants, where there is nothing to run.
    """

    name: str
    says: str
    experiment: str | None = None
    link: str = ""
    shortened: str = ""
    came: str = ""
    claims: Sequence[tuple[str, str]] = ()
    why_not: str = ""
    result: bool = True


def filled(item: Item, experiment: Experiment, runs: Sequence[ExperimentRun]) -> str | None:
    """What came out, with its numbers and on how many seeds they rest; None before any run."""
    columns = {column.name: column for column in experiment.columns}
    seeds: set[int] = set()

    def number(match: re.Match[str]) -> str:
        found = _found(runs, match[1], match[2])
        if found is None:
            return "–"
        seeds.add(len(found.values))
        column = columns.get(match[2], Column(match[2], _PLAIN))
        return printed(found, column, sign=_LESS in match[1])

    text = _PLACE.sub(number, item.came)
    if not seeds:
        return None
    most, fewest = max(seeds), min(seeds)
    many = "1 seed" if most == 1 else f"{most} seeds"
    return f"{text} ({many if fewest == most else f'{fewest} to {most} seeds'})"


def agrees(item: Item, runs: Sequence[ExperimentRun]) -> str:
    """Whether intervals lie on the paper's side of zero; nothing where it has no such claim."""
    found = [_found(runs, setting, name) for setting, name in item.claims]
    decided = [one for one in found if one is not None and one.excludes_zero]
    if any(one.mean < 0 for one in decided):
        return "no"
    return "" if not found else "yes" if len(decided) == len(found) else "undecided"


def places(item: Item) -> list[tuple[str, str]]:
    """The settings and columns that are asked for; both sides of a difference."""
    return [
        (setting, name)
        for settings, names in (*_PLACE.findall(item.came), *item.claims)
        for setting in settings.split(_LESS)
        for name in names.split(_LESS)
    ]


def _found(runs: Sequence[ExperimentRun], settings: str, names: str) -> Interval | None:
    """The number of a setting and a column, or a difference of two of either, over the seeds."""
    terms = [
        _values(runs, setting, name)
        for setting in settings.split(_LESS)
        for name in names.split(_LESS)
    ]
    seeds = sorted(set.intersection(*(set(term) for term in terms)))
    first, *rest = terms
    return interval([first[seed] - sum(term[seed] for term in rest) for seed in seeds])


def _values(runs: Sequence[ExperimentRun], setting: str, name: str) -> dict[int, float]:
    found = {}
    for run in runs:
        value = _within(run.measured, name) if run.setting == setting else None
        if isinstance(value, int | float):
            found[run.seed] = float(value)
    return found


def _within(measured: Mapping[str, Any], name: str) -> Any:
    value: Any = measured
    for key in name.split(" > "):
        value = value[int(key)] if isinstance(value, list) else value.get(key)
        if value is None:
            return None
    return value
