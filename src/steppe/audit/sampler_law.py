"""Who really takes part, counted at the batches that a run hands out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
        mean, variance, fourth: central moments of the number of participants, for each step.
        empty: probability that nobody takes part, for each step.
        single: probability that a record of each group takes part, steps × groups.
        pair: probability that two records of two groups do, steps × groups × groups.
    """

    group_of: NDArray[np.int64]
    rates: NDArray[np.float64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    fourth: NDArray[np.float64]
    empty: NDArray[np.float64]
    single: NDArray[np.float64]
    pair: NDArray[np.float64]

    @classmethod
    def of(cls, plan: Plan, group_of: NDArray[np.int64]) -> _Law:
        sampling, population = plan.sampling, len(group_of)
        of_steps = [
            sampling.rates(population, plan.batch_size, step, step + 1)[0][1]
            for step in range(plan.total_steps)
        ]
        sizes = np.bincount(group_of, minlength=sampling.groups)
        known = {rates: _moments(rates, sizes, plan.cap) for rates in dict.fromkeys(of_steps)}
        columns = zip(*(known[rates] for rates in of_steps), strict=True)
        return cls(group_of, np.array(of_steps), *(np.array(column) for column in columns))

    @property
    def chances(self) -> NDArray[np.float64]:
        """The probability that a record takes part, steps × records."""
        return self.single[:, self.group_of]


def _moments(
    rates: tuple[float, ...], sizes: NDArray[np.int64], cap: int | None
) -> tuple[Any, ...]:
    """What `_Law` holds for one step."""
    from scipy import stats

    weights = np.ones(1)
    for rate, size in zip(rates, sizes, strict=True):
        weights = np.convolve(weights, stats.binom.pmf(np.arange(size + 1), size, rate))
    records = int(sizes.sum())
    number = np.minimum(np.arange(records + 1), records if cap is None else cap)
    mean = float(weights @ number)
    away = number - mean
    single, pair = np.array(rates), np.outer(rates, rates)
    if cap is not None:  # one group, in which whoever is turned away is drawn at random
        single = np.array([mean / records])
        pair = np.array([[float(weights @ (number * (number - 1))) / (records * (records - 1))]])
    empty = float(weights @ (number == 0))
    return mean, float(weights @ away**2), float(weights @ away**4), empty, single, pair


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
    from scipy import stats

    records = len(subject.first(_RECORDS))
    dense, sparse = records / 2, 1.0
    (law, one), (_, two) = (_taken(subject, dense, steps) for _ in range(2))
    results = [
        _regime("sampler, half of the records", steps, law, one),
        _regime("sampler, one record in a step", steps, *_taken(subject, sparse, steps)),
    ]
    shared = min(len(one), len(two))
    score = _together(one[:shared], two[:shared], law.chances[:shared], law.chances[:shared])
    text = f"two runs coincide {score:+.1f} standard deviations more than independent ones"
    p_value = 2 * stats.norm.sf(abs(score))
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
    from scipy import stats

    steps = len(table)
    if steps != planned:
        text = f"{steps} batches were handed out for {planned} steps"
        return Result(name, False, math.inf, SURPRISE, text)
    sizes, groups = table.sum(axis=1), range(law.rates.shape[1])
    excess = (sizes.sum() - law.mean.sum()) / math.sqrt(law.variance.sum())
    # The spread of a binomial is not quite χ²: a gamma law with its mean and variance is closer.
    spread, centre = float(np.square(sizes - law.mean).sum()), float(law.variance.sum())
    scale = float((law.fourth - law.variance**2).sum()) / centre
    gamma = stats.gamma(centre / scale, scale=scale)
    p_values = {
        "number of participants": 2 * stats.norm.sf(abs(excess)),
        "spread of the batch sizes": 2 * min(gamma.cdf(spread), gamma.sf(spread)),
        "number of empty batches": _count_p(np.array([(sizes == 0).sum()]), law.empty),
        "count of one record": min(
            _count_p(table[:, law.group_of == group].sum(axis=0), law.single[:, group])
            for group in groups
        )
        * len(groups),
        "two records together": min(_pairs_p(table, law, a, b) for a in groups for b in groups[a:])
        * len(groups) ** 2,
        "the same record in the next step": 2
        * stats.norm.sf(abs(_together(table[:-1], table[1:], law.chances[:-1], law.chances[1:]))),
        "participants at one rate": _rates_p(table, law),
    }
    which, p_value = min(p_values.items(), key=lambda item: item[1])
    text = (
        f"{steps} batches of mean size {sizes.mean():.2f}; least likely: {which}, p = {p_value:.2g}"
    )
    return Result.at_most(name, surprise(p_value), SURPRISE, text)


def _pairs_p(table: NDArray[np.bool_], law: _Law, a: int, b: int) -> float:
    """The p-value of how often two records of two groups took part together."""
    left, right = (table[:, law.group_of == group].astype(np.int64) for group in (a, b))
    together = left.T @ right
    different = together[np.triu_indices(len(together), 1)] if a == b else together.ravel()
    return _count_p(different, law.pair[:, a, b])


def _rates_p(table: NDArray[np.bool_], law: _Law) -> float:
    """The p-value of how many of a group took part in all steps that share their rates."""
    distinct, which = np.unique(law.rates, axis=0, return_inverse=True)
    p_values = [
        _count_p(np.array([part.sum()]), np.full(part.size, law.single[steps, group][0]))
        for number in range(len(distinct))
        for group in range(law.rates.shape[1])
        if (part := table[steps := which.ravel() == number][:, law.group_of == group]).size
    ]
    # With a cap the records of a batch are not independent, and their number was judged above.
    capped = not np.array_equal(law.single, law.rates)
    return 1.0 if capped else min(1.0, len(p_values) * min(p_values))


def _together(
    a: NDArray[np.bool_],
    b: NDArray[np.bool_],
    chances_a: NDArray[np.float64],
    chances_b: NDArray[np.float64],
) -> float:
    """How many standard deviations more often than by chance two tables agree."""
    variance = chances_a * (1 - chances_a) * chances_b * (1 - chances_b)
    agreement = float(((a - chances_a) * (b - chances_b)).sum())
    return agreement / math.sqrt(float(variance.sum()))


def _count_p(counts: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """The smallest two-sided p-value of counts of coins, times the number of counts."""
    from scipy import stats

    if not counts.size:
        return 1.0
    if (chances == chances[0]).all():
        law = stats.binom(len(chances), chances[0])
        low, high = law.cdf(counts), law.sf(counts - 1)
    else:
        weights = np.ones(1)
        for chance in chances:
            weights = np.convolve(weights, (1 - chance, chance))
        low = np.cumsum(weights)[counts]
        high = np.cumsum(weights[::-1])[::-1][counts]
    return float(min(1.0, counts.size * 2 * np.minimum(low, high).min()))
