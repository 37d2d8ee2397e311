"""Place 1, Poisson sampling from parts of the records in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from steppe.accounting import Participation
from steppe.sampling.exact import Words
from steppe.sampling.fixed_order import parts
from steppe.sampling.poisson import Poisson
from steppe.sampling.sampler import Draw, Rates, Sampler, refuse_groups
from steppe.utils.validation import fail, positive_integer


@dataclass(frozen=True)
class CyclicPoisson(Sampler):
    """Each step samples from one part of the records, and the parts take turns.

    The records are shuffled once and cut into `parts` parts of nearly equal size. In step t each
    record of part t mod `parts` joins by its own coin, with a rate `parts` times that of `Poisson`.
    With noise of at most `parts` bands, what a record says in two of its steps does not overlap in
    C, and the run costs as much as one in which every part is sampled alone with independent
    noise (Choquette-Choo et al., (Amplified) Banded Matrix Factorization, 2023, Theorem 4).

    Args:
        parts: how many; at least the bands of the noise.
        order: a whole number, which selects the shuffling. It is public.

    Guarantees:
        A record takes part in a step of its part with probability exactly threshold/2⁶⁴,
        independently of all others, and in no other step. It needs a public population
        (`zero-out`): one record more would move the others to other parts.

    Examples:
        >>> CyclicPoisson(parts=4).rates(1000, 50, 0, 10)
        ((3, (0.2,)),)
    """

    parts: int
    order: int = 0

    def __post_init__(self) -> None:
        parts = positive_integer("CyclicPoisson.parts", self.parts, "use the bands of the noise")
        object.__setattr__(self, "parts", parts)
        if isinstance(self.order, bool) or not isinstance(self.order, int):
            raise fail("CyclicPoisson.order", self.order, "must be a whole number", "leave it out")

    @property
    def public_population(self) -> bool:
        """Which part a record is in depends on the number of records."""
        return True

    def threshold(self, population: int, batch_size: float) -> int:
        """The coin's integer threshold: that of `Poisson` for one part."""
        if batch_size * self.parts > population:
            raise fail(
                "batch_size",
                batch_size,
                f"must not exceed population/parts={population / self.parts:g}, because a step "
                "samples from one part",
                "use a smaller batch or fewer parts",
            )
        # Of the mean size of a part, so that all parts have one rate.
        return math.floor(math.ldexp(batch_size * self.parts / population, 64)) or 1

    def turns(self, population: int, batch_size: float, steps: int) -> Participation:
        """Any of the steps of one part; see `Sampler.turns`."""
        return Participation(-(-steps // self.parts), self.parts, exact=False)

    def rates(self, population: int, batch_size: float, start: int, stop: int) -> Rates:
        """The steps of the part that has most of them; see `Sampler.rates`."""
        rate = math.ldexp(self.threshold(population, batch_size), -64)
        return ((-(-(stop - start) // self.parts), (rate,)),)

    def begin(
        self, records: int, population: int, batch_size: float, groups: Sequence[Any] | None
    ) -> Draw:
        """Draws from the parts in turn; see `Sampler.begin`."""
        refuse_groups(self, groups)
        threshold = self.threshold(population, batch_size)
        rows = [torch.from_numpy(part) for part in parts(records, self.parts, self.order)]
        coin = Poisson()

        def draw(step: int, source: Words) -> torch.Tensor:
            part = rows[step % self.parts]
            return part[coin.draw(len(part), threshold, source)] if len(part) else part

        return draw
