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
class _Sizes:
    """The law of the number of participants in a step, and what follows from it.

    Attributes:
        mean, variance: of the number of participants.
        kurtosis: fourth central moment over the squared variance.
        empty: probability that nobody takes part.
        single: probability that a given record takes part.
        pair: probability that two given records take part together.
    """

    mean: float
    variance: float
    kurtosis: float
    empty: float
    single: float
    pair: float

    @classmethod
    def of(cls, plan: Plan, records: int) -> _Sizes:
        from scipy import stats

        heads = np.arange(records + 1)
        weights = stats.binom.pmf(heads, records, plan.rate)
        sizes = np.minimum(heads, records if plan.cap is None else plan.cap)
        mean = float(weights @ sizes)
        variance = float(weights @ (sizes - mean) ** 2)
        return cls(
            mean=mean,
            variance=variance,
            kurtosis=float(weights @ (sizes - mean) ** 4) / variance**2,
            empty=float(weights @ (sizes == 0)),
            single=mean / records,
            pair=float(weights @ (sizes * (sizes - 1))) / (records * (records - 1)),
        )


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
    (plan, one), (_, two) = (_taken(subject, dense, steps) for _ in range(2))
    law = _Sizes.of(plan, records)
    results = [
        _regime("sampler, half of the records", plan, one, law),
        _regime("sampler, one record in a step", *_taken(subject, sparse, steps)),
    ]
    shared = min(len(one), len(two))
    score = _together(one[:shared], two[:shared], law.single)
    text = f"two runs coincide {score:+.1f} standard deviations more than independent ones"
    p_value = 2 * stats.norm.sf(abs(score))
    return [*results, Result.at_most("sampler, two runs", surprise(p_value), SURPRISE, text)]


def _taken(subject: Subject, batch_size: float, steps: int) -> tuple[Plan, NDArray[np.bool_]]:
    """A run's plan, and for every batch and record whether the record was in it."""
    data = Noted(subject.first(_RECORDS))
    private = subject.private(data, population=len(data), batch_size=batch_size, steps=steps)
    table = np.zeros((steps, len(data)), dtype=np.bool_)
    drawn = 0
    for batch in private:
        table[drawn, data.rows_of(batch).numpy()] = True
        private.step(batch)
        drawn += 1
    return private.plan, table[:drawn]


def _regime(name: str, plan: Plan, table: NDArray[np.bool_], law: _Sizes | None = None) -> Result:
    from scipy import stats

    steps, records = table.shape
    law = law or _Sizes.of(plan, records)
    sizes = table.sum(axis=1)
    counts = table.sum(axis=0)
    together = (table.T.astype(np.int64) @ table)[np.triu_indices(records, 1)]
    spread = float(np.square(sizes - law.mean).sum()) / law.variance
    excess = (sizes.sum() - steps * law.mean) / math.sqrt(steps * law.variance)
    # The spread of a binomial is not quite χ²: a gamma law with its mean and variance is closer.
    gamma = stats.gamma(steps / (law.kurtosis - 1), scale=law.kurtosis - 1)
    p_values = {
        "number of participants": 2 * stats.norm.sf(abs(excess)),
        "spread of the batch sizes": 2 * min(gamma.cdf(spread), gamma.sf(spread)),
        "number of empty batches": _binomial(int((sizes == 0).sum()), steps, law.empty),
        "count of one record": min(1.0, records * _binomial(counts, steps, law.single)),
        "two records together": min(1.0, len(together) * _binomial(together, steps, law.pair)),
        "the same record in the next step": 2
        * stats.norm.sf(abs(_together(table[:-1], table[1:], law.single))),
    }
    if steps != plan.total_steps:
        text = f"{steps} batches were handed out for {plan.total_steps} steps"
        return Result(name, False, math.inf, SURPRISE, text)
    which, p_value = min(p_values.items(), key=lambda item: item[1])
    text = (
        f"{steps} batches of mean size {sizes.mean():.2f}; least likely: {which}, p = {p_value:.2g}"
    )
    return Result.at_most(name, surprise(p_value), SURPRISE, text)


def _together(a: NDArray[np.bool_], b: NDArray[np.bool_], rate: float) -> float:
    """How many standard deviations more often than by chance two tables agree."""
    agreement = float(((a - rate) * (b - rate)).sum())
    return agreement / (rate * (1 - rate) * math.sqrt(a.size))


def _binomial(counts: NDArray[np.int64] | int, trials: int, rate: float) -> float:
    """The smallest two-sided p-value of binomial counts."""
    from scipy import stats

    low, high = (
        stats.binom.cdf(counts, trials, rate),
        stats.binom.sf(np.subtract(counts, 1), trials, rate),
    )
    return float(np.minimum(1.0, 2 * np.minimum(low, high)).min())
