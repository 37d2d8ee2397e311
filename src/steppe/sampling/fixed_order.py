"""Place 1, epochs in a fixed order: a record takes part once in every epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steppe.accounting import Participation
from steppe.sampling.sampler import Draw, Rates, Sampler, refuse_groups
from steppe.utils.validation import fail, positive, positive_integer


@dataclass(frozen=True)
class FixedOrder(Sampler):
    """Every record takes part once in each epoch, in the same place of every epoch.

    The records are shuffled once and cut into batches of nearly equal size, population /
    batch_size of them, rounded; every epoch goes through these batches in the same order. No
    privacy is gained by chance: the shuffling is public and depends on `order` and on the
    population alone, so that a resumed run continues in the same order. What is gained is a known
    distance between the turns of a record, which correlated noise makes use of.

    Args:
        epochs: how often every record takes part.
        order: a whole number, which selects the shuffling. It is public.

    Guarantees:
        A record takes part in at most `epochs` steps, consecutive ones exactly one epoch apart,
        whatever a run does, as long as its steps are those of the plan. It needs a public
        population (`zero-out` or `replace-one`): one record more would move the others to other
        batches.

    Examples:
        >>> FixedOrder(epochs=2).turns(60_000, 2048, 58)
        Participation(times=2, separation=29, exact=True)
    """

    epochs: int
    order: int = 0

    def __post_init__(self) -> None:
        epochs = positive_integer("FixedOrder.epochs", self.epochs, "1 for a single pass")
        object.__setattr__(self, "epochs", epochs)
        if isinstance(self.order, bool) or not isinstance(self.order, int | np.integer):
            raise fail("FixedOrder.order", self.order, "must be a whole number", "leave it out")
        object.__setattr__(self, "order", int(self.order))

    @property
    def public_population(self) -> bool:
        """Who takes part in which step depends on the number of records."""
        return True

    def batches(self, population: int, batch_size: float) -> int:
        """The number of batches in an epoch."""
        population = positive_integer("population", population)
        return max(1, min(population, round(population / positive("batch_size", batch_size))))

    @property
    def decides_length(self) -> bool:
        """The epochs are those of the sampler."""
        return True

    def length(self, population: int, batch_size: float) -> int:
        """The number of steps of all epochs."""
        return self.epochs * self.batches(population, batch_size)

    def turns(self, population: int, batch_size: float, steps: int) -> Participation:
        """Once in every epoch, at the same place; see `Sampler.turns`."""
        batches = self.batches(population, batch_size)
        if steps > self.epochs * batches:
            raise fail(
                "steps",
                steps,
                f"are more than {self.epochs} epochs of {batches} batches, so records would take "
                "part more often than accounted",
                f"use at most {self.epochs * batches} steps, or more epochs",
            )
        if steps <= (self.epochs - 1) * batches:
            raise fail(
                "steps",
                steps,
                f"are fewer than {self.epochs} epochs of {batches} batches begin with",
                f"use FixedOrder(epochs={-(-steps // batches)})",
            )
        return Participation(self.epochs, batches)

    def rates(self, population: int, batch_size: float, start: int, stop: int) -> Rates:
        """The turns of the record that has most of them; see `Sampler.rates`."""
        return ((-(-(stop - start) // self.batches(population, batch_size)), (1.0,)),)

    def begin(
        self, records: int, population: int, batch_size: float, groups: Sequence[Any] | None
    ) -> Draw:
        """The batches, one after the other; see `Sampler.begin`."""
        refuse_groups(self, groups)
        batches = self.batches(population, batch_size)
        rows = parts(records, batches, self.order)
        return lambda step, source: torch.from_numpy(rows[step % batches].copy())


def parts(records: int, count: int, order: int) -> tuple[NDArray[np.int64], ...]:
    """The records cut into parts of nearly equal size, each sorted.

    Args:
        records: how many.
        count: of the parts.
        order: selects the shuffling.

    Examples:
        >>> [len(part) for part in parts(10, 3, order=0)]
        [4, 3, 3]
    """
    found = np.array_split(_shuffled(records, order), count)
    return tuple(np.sort(part) for part in found)


@lru_cache(maxsize=4)
def _shuffled(records: int, order: int) -> NDArray[np.int64]:
    """A permutation that is the same on every machine: the order of hashed keys."""
    stream = hashlib.shake_256(f"steppe fixed order/{order}/{records}".encode())
    keys = np.frombuffer(stream.digest(8 * records), dtype="<u8")
    return np.argsort(keys, kind="stable").astype(np.int64)
