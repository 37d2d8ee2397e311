"""Who really takes part, counted at the batches that a run hands out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steppe.audit.result import SURPRISE, Result, surprise
from steppe.audit.subject import Noted, Subject
from steppe.plan import Plan

_RECORDS = 64


@dataclass(frozen=True)
class _Law:
    """Who should take part in each step, and how many.

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
    # One group, in which whoever is turned away is drawn at random.
    sizes[cap] += sizes[cap + 1 :].sum()
    sizes[cap + 1 :] = 0
    number = np.arange(records + 1)
    single = float(sizes @ number) / records
    pair = float(sizes @ (number * (number - 1))) / (records * (records - 1))
    return sizes, np.array([single]), np.array([[pair]])


def sampler_law(subject: Subject, steps: int = 100) -> list[Result]:
    """Whether every record tosses its own coin, of the planned rate, in every step.

    Two regimes, because each shows what the other hides: half of the records in every step, and one
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
    (law, one), (_, two) = (_taken(subject, dense, steps) for _ in range(2))
    results = [
        _regime("sampler, half of the records", steps, law, one),
        _regime("sampler, one record in a step", steps, *_taken(subject, sparse, steps)),
    ]
    shared = min(len(one), len(two))
    p_value = _together_p(one[:shared], two[:shared], law.group_of)
    text = f"coincidences of two runs, p = {p_value:.2g}"
    return [*results, Result.at_most("sampler, two runs", surprise(p_value), SURPRISE, text)]


def _taken(subject: Subject, batch_size: float, steps: int) -> tuple[_Law, NDArray[np.bool_]]:
    """A run's law, and for every batch and record whether the record was in it."""
    data = Noted(subject.first(_RECORDS))
    private = subject.private(data, population=len(data), batch_size=batch_size, steps=steps)
    table = np.zeros((steps, len(data)), dtype=np.bool_)
    drawn = 0
    for batch in private:
        table[drawn, data.rows_of(batch).numpy()] = True
        private.step(batch)
        drawn += 1
    group_of = np.zeros(len(data), dtype=np.int64)
    for number, rows in enumerate(private.groups or ()):
        group_of[np.asarray(rows)] = number
    return _Law.of(private.plan, group_of), table[:drawn]


def _regime(name: str, planned: int, law: _Law, table: NDArray[np.bool_]) -> Result:
    steps = len(table)
    if steps != planned:
        text = f"{steps} batches were handed out for {planned} steps"
        return Result(name, False, math.inf, SURPRISE, text)
    sizes, groups = table.sum(axis=1), range(law.rates.shape[1])
    p_values = {
        "number of participants": _p_value(sizes.sum(), law.sizes),
        "spread of the batch sizes": _spread_p(sizes, law.sizes),
        "number of empty batches": _p_value((sizes == 0).sum(), _coins(law.sizes[:, 0])),
        "count of one record": min(
            _p_value(table[:, law.group_of == group].sum(axis=0), _coins(law.single[:, group]))
            for group in groups
        )
        * len(groups),
        "two records together": min(_pairs_p(table, law, a, b) for a in groups for b in groups[a:])
        * len(groups) ** 2,
        "the same record in the next step": _together_p(table[:-1], table[1:], law.group_of),
        "participants at one rate": _rates_p(table, law),
    }
    which, p_value = min(p_values.items(), key=lambda item: item[1])
    text = (
        f"{steps} batches of mean size {sizes.mean():.2f}; least likely: {which}, p = {p_value:.2g}"
    )
    return Result.at_most(name, surprise(p_value), SURPRISE, text)


def _spread_p(sizes: NDArray[np.int64], laws: NDArray[np.float64]) -> float:
    """The p-value of the squared distances of the sizes from their means in whole numbers."""
    number = np.arange(laws.shape[1])
    away = np.square(number - np.rint(laws @ number)[:, None]).astype(np.int64)
    squares = np.zeros((len(laws), away.max() + 1))
    np.add.at(squares, (np.arange(len(laws))[:, None], away), laws)
    return _p_value(away[np.arange(len(laws)), sizes].sum(), squares)


def _pairs_p(table: NDArray[np.bool_], law: _Law, a: int, b: int) -> float:
    """The p-value of how often two records of two groups took part together."""
    left, right = (table[:, law.group_of == group].astype(np.int64) for group in (a, b))
    together = left.T @ right
    different = together[np.triu_indices(len(together), 1)] if a == b else together.ravel()
    return _p_value(different, _coins(law.pair[:, a, b]))


def _rates_p(table: NDArray[np.bool_], law: _Law) -> float:
    """The p-value of how many of a group took part in all steps that share their rates."""
    # With a cap the records of a batch are not independent, and their number was judged above.
    if not np.array_equal(law.single, law.rates):
        return 1.0
    distinct, which = np.unique(law.rates, axis=0, return_inverse=True)
    p_values = [
        _p_value(part.sum(), _coins(np.full(part.size, rates[group])))
        for number, rates in enumerate(distinct)
        for group in range(len(rates))
        if (part := table[which.ravel() == number][:, law.group_of == group]).size
    ]
    return min(1.0, len(p_values) * min(p_values))


def _together_p(a: NDArray[np.bool_], b: NDArray[np.bool_], group_of: NDArray[np.int64]) -> float:
    """The p-value of how often a record is in both of two batches, given how many are in each.

    Given their sizes, batches are drawn like lots: what they share is hypergeometric, with a cap
    and without. That a batch stands in two pairs does not matter: whatever it is, the next one is
    drawn as independently.
    """
    from scipy import stats

    laws, shared = [], 0
    for group in np.unique(group_of):
        left, right = a[:, group_of == group], b[:, group_of == group]
        members = left.shape[1]
        number = np.arange(members + 1)[None]
        sizes = left.sum(axis=1)[:, None], right.sum(axis=1)[:, None]
        laws.append(stats.hypergeom.pmf(number, members, *sizes))
        shared += int((left & right).sum())
    widest = max(law.shape[1] for law in laws)
    padded = [np.pad(law, ((0, 0), (0, widest - law.shape[1]))) for law in laws]
    return _p_value(shared, np.concatenate(padded))


def _coins(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """The laws of coins, one a row."""
    return np.stack((1 - chances, chances), axis=1)


def _p_value(sums: NDArray[np.int64] | np.int64 | int, laws: NDArray[np.float64]) -> float:
    """The smallest two-sided p-value of sums, times their number.

    Counts are small where batches are: a normal law would call six coincidences impossible that
    happen once in 3,000 runs. So the law of the sum is made whole, by Fourier transforms, whose
    rounding is far below what counts as a surprise.

    Args:
        sums: what was counted, each a sum of independent numbers.
        laws: the probabilities of 0, 1, 2, … of each number, one a row.
    """
    from scipy import fft

    sums = np.atleast_1d(sums)
    if not sums.size:
        return 1.0
    distinct, times = np.unique(laws, axis=0, return_counts=True)
    longest = len(laws) * (laws.shape[1] - 1) + 1
    length = fft.next_fast_len(longest, real=True)
    transform = np.prod(fft.rfft(distinct, length) ** times[:, None], axis=0)
    weights = np.maximum(fft.irfft(transform, length)[:longest], 0)
    low, high = np.cumsum(weights)[sums], np.cumsum(weights[::-1])[::-1][sums]
    return float(min(1.0, sums.size * 2 * np.minimum(low, high).min()))
