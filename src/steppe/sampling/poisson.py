"""Place 1, who takes part: every record tosses its own coin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from steppe.sampling.exact import ONE, Words, binomial, uniform_subset
from steppe.sampling.sampler import Draw, Rates, Sampler
from steppe.utils.validation import fail, positive, positive_integer


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record joins each step independently with the plan's rate.

    Guarantees:
        Every record takes part with probability exactly threshold/2⁶⁴, independently of all other
        records and steps. `realised_rate` is that same number, so what is accounted is what is
        drawn. A step draws the number of participants from its binomial law and then a uniform
        subset of that size, which is the joint law of independent coins; the work is proportional
        to the batch, not to the population. The only deviation is the rounding of the binomial
        table, below 2⁻¹⁰⁰ in total variation.

    Examples:
        >>> from steppe.noise import SecureSource
        >>> batches = Poisson().batches(60_000, 256, steps=3, source=SecureSource())
        >>> [rows.dtype for rows in batches]
        [torch.int64, torch.int64, torch.int64]
    """

    def threshold(self, population: int, batch_size: float) -> int:
        """The coin's integer threshold: a record joins with probability threshold/2⁶⁴.

        Args:
            population: Declared number of records.
            batch_size: Expected number of participants in a step.

        Returns:
            A whole number between 1 and 2⁶⁴; rounding never raises the rate.
        """
        population = positive_integer("population", population)
        batch_size = positive("batch_size", batch_size)
        if batch_size > population:
            raise fail(
                "batch_size",
                batch_size,
                f"must not exceed population={population}",
                "use the population for full batches",
            )
        threshold = math.floor(math.ldexp(batch_size / population, 64))
        if threshold == 0:
            raise fail(
                "batch_size",
                batch_size,
                "must be at least population/2⁶⁴",
                "give a larger expected batch",
            )
        return threshold

    def realised_rate(self, population: int, batch_size: float) -> float:
        """The probability that a record takes part in a step, as the account must use it.

        Args:
            population: Declared number of records.
            batch_size: Expected number of participants in a step.

        Returns:
            threshold/2⁶⁴, without rounding: the threshold has at most 53 significant bits.

        Examples:
            >>> Poisson().realised_rate(1000, 250)
            0.25
        """
        return math.ldexp(self.threshold(population, batch_size), -64)

    def rates(self, population: int, batch_size: float, start: int, stop: int) -> Rates:
        """The same rate in every step; see `Sampler.rates`."""
        return ((stop - start, (self.realised_rate(population, batch_size),)),)

    def begin(
        self, records: int, population: int, batch_size: float, groups: Sequence[Any] | None
    ) -> Draw:
        """Draws at one rate; see `Sampler.begin`."""
        if groups is not None:
            rule = f"cannot be used with {type(self).__name__}, which has one sampling rate"
            raise fail("groups", type(groups).__name__, rule, "leave them out, or use Periodic")
        threshold = self.threshold(population, batch_size)
        return lambda step, source: self.draw(records, threshold, source)

    def draw(self, population: int, threshold: int, source: Words) -> torch.Tensor:
        """The participants of one step.

        Args:
            population: Number of records.
            threshold: From `threshold`, between 1 and 2⁶⁴.
            source: Where the coins come from.

        Returns:
            Sorted row numbers, int64; empty when nobody takes part.

        Examples:
            >>> from steppe.noise import SecureSource
            >>> Poisson().draw(5, 2**64, SecureSource())
            tensor([0, 1, 2, 3, 4])
        """
        _check_draw(population, threshold, source)
        size = binomial(population, threshold, source)
        return torch.from_numpy(uniform_subset(population, size, source))

    def batches(
        self, population: int, batch_size: float, steps: int, source: Words
    ) -> Iterator[torch.Tensor]:
        """The participants of every step, one after the other.

        Args:
            population: Number of records.
            batch_size: Expected number of participants in a step.
            steps: Number of steps.
            source: Where the coins come from.

        Returns:
            Exactly `steps` index tensors, empty ones included; drawn as they are asked for.
        """
        threshold = self.threshold(population, batch_size)
        steps = positive_integer("steps", steps)
        _check_draw(population, threshold, source)
        return (self.draw(population, threshold, source) for _ in range(steps))


@dataclass(frozen=True)
class CappedPoisson(Poisson):
    """Poisson sampling with at most `cap` records taking part.

    Args:
        cap: Largest number of participants; None for six standard deviations above the expected
            batch, where the cap costs nothing measurable.
        fixed_shapes: Fill every step's batch up to the cap with rows of zeros that say nothing, so
            that all passes through the model have the same shapes, also for an empty batch. ε does
            not change. It costs the compute of those rows: with an expected batch of 2048 the cap
            is 2315, which is 13 % more.

    Guarantees:
        When more than `cap` coins show heads, a uniformly random subset of `cap` of those records
        takes part. This is the mechanism of dp-accounting's `TruncatedSubsampledGaussianDpEvent`
        with this population, `realised_rate` and `resolved_cap`. Records are no longer
        independent, so it needs zero-out adjacency: the population is public and a neighbouring
        data set blanks a record instead of removing it.

        With `fixed_shapes`, number and shapes of the passes follow from public constants, as far as
        all records have one shape. The time to read and copy records still depends on how many
        there are. The rows add exactly zero to what a step releases, whatever the model makes of
        them.

    Examples:
        >>> CappedPoisson().resolved_cap(60_000, 2048)
        2315
    """

    cap: int | None = None
    fixed_shapes: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.fixed_shapes, bool):
            raise fail(
                "fixed_shapes",
                self.fixed_shapes,
                "must be True or False",
                "use False for the default",
            )
        if self.cap is not None:
            cap = positive_integer("cap", self.cap, "give a whole number, or leave it out")
            object.__setattr__(self, "cap", cap)

    def resolved_cap(self, population: int, batch_size: float) -> int:
        """The largest number of participants in a step.

        Args:
            population: Declared number of records.
            batch_size: Expected number of participants in a step.

        Returns:
            `cap`, or ceil(B + 6 sqrt(B (1 − q))) if it is None; never more than the population.
        """
        return self._cap(population, self.threshold(population, batch_size))

    def _cap(self, population: int, threshold: int) -> int:
        if self.cap is not None:
            return min(self.cap, population)
        rate = math.ldexp(threshold, -64)
        expected = population * rate
        return min(population, math.ceil(expected + 6.0 * math.sqrt(expected * (1.0 - rate))))

    def draw(self, population: int, threshold: int, source: Words) -> torch.Tensor:
        """The participants of one step, at most the cap; see `Poisson.draw`."""
        _check_draw(population, threshold, source)
        # A uniform subset of a uniform subset is a uniform subset: only the size changes.
        size = min(binomial(population, threshold, source), self._cap(population, threshold))
        return torch.from_numpy(uniform_subset(population, size, source))


def _check_draw(population: int, threshold: int, source: Words) -> None:
    positive_integer("population", population)
    if not 1 <= positive_integer("threshold", threshold) <= ONE:
        raise fail("threshold", threshold, "must lie in 1 … 2⁶⁴", "take it from threshold()")
    if not isinstance(source, Words):
        raise fail(
            "source",
            source,
            "must be a cryptographic source, because seeded generators repeat their draws and make "
            "them predictable",
            "use SecureSource()",
        )
