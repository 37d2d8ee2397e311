"""What an experiment is: a few settings, a few seeds, and a function that measures one of them.

How to write one:

1. A module of this package, named after its paper, with a tuple `EXPERIMENTS`; add its name to
   `PAPERS` in `catalogue.py`.
2. A function `measure(constants, seed)` that returns a mapping of numbers, or of anything JSON can
   hold (lists for curves; NaN is stored as null). `constants` is the setting's own table, so that
   everything that decides the result is stored beside it. The seed is all it may depend on
   otherwise: `torch.manual_seed` for the first weights, `SeededSource(seed)` for sampling and
   noise. `pictures.py` trains networks on data sets in this way.
3. `Experiment(name=…, paper=…, item=…, settings={"DP-SGD": {...}, "DP-SAT": {...}}, seeds=(0, 1),
   measure=measure, columns=(Column("accuracy", "{:.2%}"),), baseline="DP-SGD", expected="…",
   judged=("accuracy",), minutes=3.0)`. Columns are the numbers that the table shows, as mean and
   95 % interval from three seeds on, else as the number of each seed; with a baseline, judged
   columns also as difference to it, paired by seed. What the interval of a judged column says by
   itself, the page says, so that no sentence waits for the last seed.
4. `figure=` is a function of the stored runs that returns a matplotlib figure. It is drawn from the
   stored numbers alone, so it can be changed without running anything again.
5. `python -m steppe.papers run NAME` stores each (setting, seed) in `docs/results/NAME.json` as it
   finishes, resumes, and never repeats. Changing the constants of a stored setting is refused.
6. Name it in the row of its table or figure in `coverage/`, and run `steppe papers overview`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Constants = Mapping[str, Any]
Measured = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A measured number that the table shows.

    Args:
        name: its key in what was measured.
        form: how to print it, a format string.
        title: its heading; the key unless given.
    """

    name: str
    form: str = "{:.4g}"
    title: str | None = None


@dataclass(frozen=True)
class ExperimentRun:
    """One setting at one seed, as it is stored.

    Attributes:
        setting: its name.
        seed: of the first weights, the sampling and the noise.
        constants: the setting's table when it ran.
        measured: what came out.
        seconds: how long it took.
        threads: torch's threads.
        date: when it ended, in UTC.
        command: what was typed.
        version: of this library.
    """

    setting: str
    seed: int
    constants: Constants
    measured: Measured
    seconds: float
    threads: int
    date: str
    command: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper, as a command.

    Args:
        name: of the command and of its files, lower case with dashes.
        paper: author and title in short.
        item: the table or figure, and how this differs from it.
        settings: constants by the name to print, the most telling first.
        seeds: run in this order, each for all settings.
        measure: (constants, seed) to numbers.
        columns: the numbers to show.
        expected: what the paper says should come out.
        minutes: one run on one thread, until there are measured times.
        baseline: the setting that others are compared with, seed by seed.
        judged: columns of which the page says on which side of zero their interval lies: that of
            the difference to the baseline where there is one, else that of the number itself.
        rivals: where settings come in pairs, what each is judged against instead of a baseline;
            settings without a rival are then not judged.
        figure: draws the stored runs.

    Examples:
        >>> coin = Experiment(
        ...     name="coin", paper="Nobody", item="Table 0", settings={"fair": {"p": 0.5}},
        ...     seeds=(0,), measure=lambda constants, seed: {"mean": constants["p"]},
        ...     columns=(Column("mean"),), expected="one half", minutes=0.01,
        ... )
        >>> coin.measure(coin.settings["fair"], 0)
        {'mean': 0.5}
    """

    name: str
    paper: str
    item: str
    settings: Mapping[str, Constants]
    seeds: Sequence[int]
    measure: Callable[[Constants, int], Measured]
    columns: Sequence[Column]
    expected: str
    minutes: float
    baseline: str | None = None
    judged: Sequence[str] = ()
    rivals: Mapping[str, str] = field(default_factory=dict)
    figure: Callable[[Sequence[ExperimentRun]], Figure] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            rule = "must be lower-case words with dashes between, since files are named after it"
            raise validation.fail("name", self.name, rule, "write it like 'dp-sat-toy'")
        validation.positive("minutes", self.minutes)
        for name, value in (("settings", self.settings), ("seeds", self.seeds)):
            if not value:
                raise validation.fail(name, value, "must not be empty", "name at least one")
        if self.baseline is not None and self.baseline not in self.settings:
            known = ", ".join(self.settings)
            raise validation.fail("baseline", self.baseline, f"must be one of {known}", "name one")
        for name in self.judged:
            validation.one_of("judged", name, [column.name for column in self.columns])
        for name in {*self.rivals, *self.rivals.values()}:
            validation.one_of("rivals", name, list(self.settings))

    def pairs(self) -> list[tuple[str, int]]:
        """Every (setting, seed), in the order in which they are run."""
        return [(setting, seed) for seed in self.seeds for setting in self.settings]


def number(run: ExperimentRun, column: str) -> float | None:
    """A run's number in a column, or None where it has none."""
    value = run.measured.get(column)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)
