"""Counts which records take part in the batches of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steppe.audit.counts import coins, of_values, p_value, spread_p, sum_law, together_p
from steppe.audit.result import SURPRISE, Result, surprise
from steppe.audit.subject import AuditedRun, RecordedRows
from steppe.plan import Plan

_RECORDS = 64


@dataclass(frozen=True)
class _Law:
    """The planned law of the batches: who takes part in each step, and how many.

    Attributes:
        group_of: the group of each record.
        rates: the coin of each group in each step, steps × groups.
        sizes: the probability of each number of participants, steps × (records + 1).
        single: probability that a record of each group takes part, steps × groups.
        pair: probability that two records of two groups do, steps × groups × groups.
    """

    group_of: NDArray[np.int64]
    rates: NDArray[np.float64]
    sizes: NDArray[np.float64]
    single: NDArray[np.float64]
    pair: NDArray[np.float64]

    @property
    def capped(self) -> bool:
        """Whether a cap applies."""
        return not np.array_equal(self.single, self.rates)

    @classmethod
    def of(cls, plan: Plan, group_of: NDArray[np.int64]) -> _Law:
        sampling, population = plan.sampling, len(group_of)
        of_steps = [
            sampling.rates(population, plan.batch_size, step, step + 1)[0][1]
            for step in range(plan.total_steps)
        ]
        members = np.bincount(group_of, minlength=sampling.groups)
        known = {rates: _one_step(rates, members, plan.cap) for rates in dict.fromkeys(of_steps)}
        columns = zip(*(known[rates] for rates in of_steps), strict=True)
        return cls(group_of, np.array(of_steps), *(np.array(column) for column in columns))


def _one_step(
    rates: tuple[float, ...], members: NDArray[np.int64], cap: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """`sizes`, `single` and `pair` of one step."""
    from scipy import stats

    sizes = np.ones(1)
    for rate, size in zip(rates, members, strict=True):
        sizes = np.convolve(sizes, stats.binom.pmf(np.arange(size + 1), size, rate))
    records = int(members.sum())
    if cap is None or cap >= records:
        return sizes, np.array(rates), np.outer(rates, rates)
    # One group, from which a random subset remains.
    sizes[cap] += sizes[cap + 1 :].sum()
    sizes[cap + 1 :] = 0
    number = np.arange(records + 1)
    single = float(sizes @ number) / records
    pair = float(sizes @ (number * (number - 1))) / (records * (records - 1))
    return sizes, np.array([single]), np.array([[pair]])


def sampler_law(subject: AuditedRun, steps: int = 100) -> list[Result]:
    """Whether every record is drawn independently, with the planned rate, in every step.

    Two regimes detect different errors: half of the records in every step, and one
    record on average, where more than a third of the batches are empty.

    Args:
        subject: what to audit; its first 64 records take part.
        steps: how many batches to draw in each of three runs.

    Returns:
        One result for each regime and one for two runs side by side: the surprise of the least
        likely count.
    """
    records = len(subject.first(_RECORDS))
    dense, sparse = records / 2, 1.0
    (law, one), (_, two) = (_observed_run(subject, dense, steps) for _ in range(2))
    results = [
        _regime("sampler, half of the records", steps, law, one),
        _regime("sampler, one record in a step", steps, *_observed_run(subject, sparse, steps)),
    ]
    shared = min(len(one), len(two))
    p = together_p(one[:shared] > 0, two[:shared] > 0, law.group_of)
    text = f"coincidences of two runs, p = {p:.2g}"
    return [*results, Result.at_most("sampler, two runs", surprise(p), SURPRISE, text)]


def _observed_run(
    subject: AuditedRun, batch_size: float, steps: int
) -> tuple[_Law, NDArray[np.int64]]:
    """A run's law, and how many times each batch holds each record."""
    data = RecordedRows(subject.first(_RECORDS))
    private = subject.private(data, population=len(data), batch_size=batch_size, steps=steps)
    table = np.zeros((steps, len(data)), dtype=np.int64)
    drawn = 0
    for batch in private:
        table[drawn] = np.bincount(data.rows_of(batch).numpy(), minlength=len(data))
        private.step(batch)
        drawn += 1
    group_of = np.zeros(len(data), dtype=np.int64)
    for number, rows in enumerate(private.groups or ()):
        group_of[np.asarray(rows)] = number
    return _Law.of(private.plan, group_of), table[:drawn]


def _regime(name: str, planned: int, law: _Law, times: NDArray[np.int64]) -> Result:
    steps = len(times)
    if steps != planned:
        text = f"{steps} batches were handed out for {planned} steps"
        return Result(name, False, math.inf, SURPRISE, text)
    if (most := times.max(initial=0)) > 1:
        text = f"a batch holds a record {most} times, which moves the sum {most} times as far"
        return Result(name, False, math.inf, SURPRISE, text)
    table = times > 0
    sizes = table.sum(axis=1)
    p_values = {
        "number of participants": p_value(sizes.sum(), law.sizes),
        "spread of the batch sizes": spread_p(sizes, law.sizes),
        "number of empty batches": p_value((sizes == 0).sum(), coins(law.sizes[:, 0])),
        "sizes of neighbouring steps": _neighbours_p(sizes, law.sizes),
        "participations of the records": _records_p(table, law),
        "two records alike": _pairs_p(table, law),
        "the same record in a later step": _lags_p(table, law.group_of),
        "participants at one rate": _rates_p(table, law),
    }
    which, least = min(p_values.items(), key=lambda item: item[1])
    p = min(1.0, len(p_values) * least)
    text = f"{steps} batches of mean size {sizes.mean():.2f}; least likely: {which}, p = {p:.2g}"
    return Result.at_most(name, surprise(p), SURPRISE, text)


def _neighbours_p(sizes: NDArray[np.int64], laws: NDArray[np.float64]) -> float:
    """The p-value of the squared differences in size of every step and the next.

    Steps 1 and 2, 3 and 4, … are independent pairs, and so are 2 and 3, 4 and 5, ….
    """
    value = np.arange(laws.shape[1])
    away = np.square(value[:, None] - value).ravel()[None]
    found = [1.0]
    for first in (0, 1):
        pairs = [(step, step + 1) for step in range(first, len(sizes) - 1, 2)]
        if pairs:
            products = np.stack([np.outer(laws[a], laws[b]).ravel() for a, b in pairs])
            seen = sum(int(sizes[a] - sizes[b]) ** 2 for a, b in pairs)
            found.append(p_value(seen, of_values(np.repeat(away, len(pairs), 0), products)))
    return min(1.0, 2 * min(found))


def _records_p(table: NDArray[np.bool_], law: _Law) -> float:
    """The p-value of how often each record took part, by itself and in how unlike they are."""
    found = [1.0]
    for group in range(law.rates.shape[1]):
        counts = table[:, law.group_of == group].sum(axis=0)
        if not counts.size:
            continue
        tossed = coins(law.single[:, group])
        found.append(p_value(counts, tossed))
        if not law.capped:  # a cap ties the records of a batch to each other
            found.append(spread_p(counts, np.tile(sum_law(tossed), (len(counts), 1))))
    return min(1.0, len(found) * min(found))


def _pairs_p(table: NDArray[np.bool_], law: _Law) -> float:
    """The p-value of in how many steps two records both took part or both did not."""
    groups = range(law.rates.shape[1])
    found = [1.0]
    for a in groups:
        for b in groups[a:]:
            left, right = (table[:, law.group_of == group].astype(np.int64) for group in (a, b))
            alike = left.T @ right + (1 - left).T @ (1 - right)
            different = alike[np.triu_indices(len(alike), 1)] if a == b else alike.ravel()
            chances = 1 - law.single[:, a] - law.single[:, b] + 2 * law.pair[:, a, b]
            found.append(p_value(different, coins(chances)))
    return min(1.0, len(found) * min(found))


def _lags_p(table: NDArray[np.bool_], group_of: NDArray[np.int64]) -> float:
    """The p-value of how often a record of one step takes part again, so many steps later."""
    lags = range(1, len(table))
    found = [together_p(table[:-lag], table[lag:], group_of) for lag in lags]
    return min([1.0, *(len(lags) * p for p in found)])


def _rates_p(table: NDArray[np.bool_], law: _Law) -> float:
    """The p-value of how many of a group took part in all steps that share their rates."""
    if law.capped:  # the records of a batch are not independent, and their number was judged above
        return 1.0
    distinct, which = np.unique(law.rates, axis=0, return_inverse=True)
    p_values = [
        p_value(part.sum(), coins(np.full(part.size, rates[group])))
        for number, rates in enumerate(distinct)
        for group in range(len(rates))
        if (part := table[which.ravel() == number][:, law.group_of == group]).size
    ]
    return min(1.0, len(p_values) * min(p_values))
