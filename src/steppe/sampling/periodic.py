"""Place 1, two groups of records that come and go, as users do by day and by night."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from steppe.sampling.exact import Words
from steppe.sampling.poisson import Poisson
from steppe.sampling.sampler import Draw, Rates, Sampler, members
from steppe.utils.validation import fail, open_unit, positive, positive_integer

_LONGEST = 2**53  # the largest number of steps that a plan can have


@dataclass(frozen=True)
class Periodic(Sampler):
    """Poisson sampling of two groups whose shares of a batch follow a triangle wave.

    In step t, counted from 0, the first group's share of the expected batch is
    s = |2 (t mod T)/T − 1| and the second group's is 1 − s: a period starts with the first group
    alone, comes to the second one alone at T/2 and goes back. A record of a group of n records
    joins by its own coin of rate min(1, B s/n); the noised sum is divided by B as ever. (Recycling
    Scraps prints |2^(t mod T) − 1|; the code of Zhu et al. that it follows has the formula here.)

    Which group a record belongs to is declared by its owner, as `groups=` of `make_private`, and
    is part of the record: it is protected like the rest of it.

    Args:
        period: T, in steps.
        first: The first group's share of the population, a public constant; its size is this times
            the population, rounded.

    Guarantees:
        A record of a group takes part in a step with probability exactly threshold/2⁶⁴ of that
        group and step, independently of all other records and steps. `rates` are the same numbers,
        so what is accounted is what is drawn. Groups that turn out larger or smaller than declared
        change the size of batches but not a record's rate, and so not its privacy.

    Examples:
        >>> Periodic(4).rates(1000, 100, 0, 4)
        ((1, (0.2, 0.0)), (2, (0.1, 0.1)), (1, (0.0, 0.2)))
    """

    period: int
    first: float = 0.5

    def __post_init__(self) -> None:
        period = positive_integer("period", self.period)
        if not 2 <= period <= _LONGEST:
            rule = "must be at least 2 steps and at most 2⁵³"
            remedy = "a group must be able to leave and to return"
            raise fail("period", period, rule, remedy)
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "first", open_unit("first", self.first))

    @property
    def groups(self) -> int:
        """The two groups that come and go."""
        return 2

    def sizes(self, population: int) -> tuple[int, int]:
        """The declared number of records in each group.

        Examples:
            >>> Periodic(32, first=0.3).sizes(1000)
            (300, 700)
        """
        population = positive_integer("population", population)
        one = round(self.first * population)
        if not 0 < one < population:
            rule = f"leaves one group of the {population} records empty"
            raise fail("first", self.first, rule, "use Poisson(), or a share between the two")
        return one, population - one

    def thresholds(self, population: int, batch_size: float, phase: int) -> tuple[int, int]:
        """Each group's coin in a step with t mod T = phase: whole numbers between 0 and 2⁶⁴."""
        positive("batch_size", batch_size)
        sizes = self.sizes(population)
        return _thresholds(self.period, sizes, float(batch_size), phase)

    def rates(self, population: int, batch_size: float, start: int, stop: int) -> Rates:
        """The rates of both groups; see `Sampler.rates`."""
        counts: dict[tuple[float, ...], int] = {}
        # Each phase of the period, with how often the steps come past it.
        for offset in range(min(self.period, stop - start)):
            coins = self.thresholds(population, batch_size, (start + offset) % self.period)
            rates = tuple(math.ldexp(coin, -64) for coin in coins)
            times = (stop - start - offset - 1) // self.period + 1
            counts[rates] = counts.get(rates, 0) + times
        return tuple((times, rates) for rates, times in counts.items())

    def begin(
        self, records: int, population: int, batch_size: float, groups: Sequence[Any] | None
    ) -> Draw:
        """Draws for records in two groups; see `Sampler.begin`."""
        rows = members(groups, self.groups, records)
        coin = Poisson()

        def draw(step: int, source: Words) -> Tensor:
            thresholds = self.thresholds(population, batch_size, step % self.period)
            # No coin is tossed at rate 0, where the answer is known, nor for a group without rows.
            taken = [
                group[coin.draw(len(group), threshold, source)]
                for group, threshold in zip(rows, thresholds, strict=True)
                if threshold and len(group)
            ]
            nobody = torch.zeros(0, dtype=torch.int64, device="cpu")
            return torch.cat([nobody, *taken]).sort().values

        return draw


@lru_cache(maxsize=4096)
def _thresholds(
    period: int, sizes: tuple[int, int], batch_size: float, phase: int
) -> tuple[int, int]:
    # Twice a phase minus the period is a whole number, so equal shares give equal rates.
    lead = abs(2 * phase - period)
    one, two = (
        math.floor(math.ldexp(min(1.0, batch_size * part / (period * size)), 64))
        for part, size in zip((lead, period - lead), sizes, strict=True)
    )
    return one, two
