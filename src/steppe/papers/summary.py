"""Means over seeds with their intervals, and differences to a baseline, as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from steppe.papers.experiment import Column, Experiment, ExperimentRun, number

# With two seeds Student's t is 12.7 standard errors: such an interval says nothing but "two seeds".
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % interval by Student's t.

    Attributes:
        mean: over the values.
        half: None with fewer than three values.
        values: one for each seed.
    """

    mean: float
    half: float | None
    values: tuple[float, ...]

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside."""
        return self.half is not None and abs(self.mean) > self.half


def interval(values: Sequence[float]) -> Interval | None:
    """Mean and 95 % interval of independent values; None without any.

    Examples:
        >>> interval([1.0, 2.0, 3.0])
        Interval(mean=2.0, half=2.48413..., values=(1.0, 2.0, 3.0))
        >>> interval([1.0, 2.0]).half is None
        True
    """
    if not values:
        return None
    count, mean = len(values), statistics.fmean(values)
    if count < FEWEST_SEEDS or not all(map(math.isfinite, values)):
        return Interval(mean, None, tuple(values))
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, half, tuple(values))


def values(runs: Sequence[ExperimentRun], setting: str, column: str) -> dict[int, float]:
    """A column's numbers by seed."""
    found = {run.seed: number(run, column) for run in runs if run.setting == setting}
    return {seed: value for seed, value in found.items() if value is not None}


def mean(runs: Sequence[ExperimentRun], setting: str, column: str) -> Interval | None:
    """A setting's mean over its seeds."""
    return interval(list(values(runs, setting, column).values()))


def difference(
    runs: Sequence[ExperimentRun], setting: str, baseline: str, column: str
) -> Interval | None:
    """The mean difference to another setting over the seeds that both have.

    Seeds decide first weights, sampling and noise. Pairs differ by the setting, and by the draws
    that follow a step which asks for more noise than the other one's; intervals hold either way.
    """
    ours, theirs = values(runs, setting, column), values(runs, baseline, column)
    return interval([ours[seed] - theirs[seed] for seed in sorted({*ours} & {*theirs})])


def table(experiment: Experiment, runs: Sequence[ExperimentRun]) -> str:
    """The experiment's table in Markdown; judged columns also as differences to the baseline.

    From three seeds on a cell is a mean with its interval; with fewer it lists every seed's number.
    """
    judged = experiment.judged if experiment.baseline is not None else ()
    compared = [column for column in experiment.columns if column.name in judged]
    head = ["setting", "seeds"]
    head += [column.title or column.name for column in experiment.columns]
    head += [f"{column.title or column.name} − {experiment.baseline}" for column in compared]
    rows = []
    for setting in experiment.settings:
        count = sum(run.setting == setting for run in runs)
        if not count:
            continue
        cells = [setting, str(count)]
        cells += [_cell(mean(runs, setting, c.name), c) for c in experiment.columns]
        cells += [
            _cell(difference(runs, setting, experiment.baseline, c.name), c, sign=True)
            if experiment.baseline is not None and setting != experiment.baseline
            else ""
            for c in compared
        ]
        rows.append(cells)
    return aligned([head, *rows])


def verdicts(experiment: Experiment, runs: Sequence[ExperimentRun]) -> list[str]:
    """For each setting, which of the judged columns are above or below zero beyond their interval.

    Settings with fewer than three seeds have no interval and are left out. Differences to a rival
    are not in the table, and so come with their numbers.
    """
    rivals, lines = experiment.rivals, []
    judged = [column for column in experiment.columns if column.name in experiment.judged]
    for setting in rivals or experiment.settings:
        rival = rivals.get(setting, experiment.baseline)
        sides: dict[str, list[str]] = {"above zero": [], "below zero": [], "undecided": []}
        for column in judged if setting != rival else ():
            found = (
                mean(runs, setting, column.name)
                if rival is None
                else difference(runs, setting, rival, column.name)
            )
            if found is not None and found.half is not None:
                title = column.title or column.name
                number = f" ({_cell(found, column, sign=True)})" if rivals else ""
                sides[_side(found)].append(title + number)
        said = [f"{', '.join(titles)} {side}" for side, titles in sides.items() if titles]
        if said:
            name = f"{setting} − {rival}" if rivals else setting
            lines.append(f"{name}: {'; '.join(said)}.")
    return lines


def _side(found: Interval) -> str:
    if not found.excludes_zero:
        return "undecided"
    return "above zero" if found.mean > 0 else "below zero"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first one the heading, as a Markdown table with straight columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def printed(found: Interval, column: Column, sign: bool = False) -> str:
    """A mean with its interval, or the number of every seed where there are too few for one."""
    if found.half is None:
        return " / ".join(_signed(value, column, sign) for value in found.values)
    return f"{_signed(found.mean, column, sign)} ± {column.form.format(found.half)}"


def _cell(found: Interval | None, column: Column, sign: bool = False) -> str:
    return "–" if found is None else printed(found, column, sign)


def _signed(value: float, column: Column, sign: bool) -> str:
    text = column.form.format(value)
    return f"+{text}" if sign and value >= 0 else text
