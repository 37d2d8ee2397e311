"""Reads the batch of every step from the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from steppe.randomness import SecretGenerators, Source
from steppe.records import Records
from steppe.sampling import Draw


class BatchReader:
    """Batches by step number.

    Args:
        draw: returns the rows that take part in a step, by its number.
        records: the data.
        source: where the random numbers of the draws come from.
        steps: the number of steps.

    Guarantees:
        A step has one draw, however often its batch is read and whatever was interrupted: a draw is
        stored with the number of its step until a later step is read, so draws and account cannot
        disagree. Random numbers that a data set draws from the global generators are secret,
        whatever their seed.
    """

    def __init__(self, draw: Draw, records: Records, source: Source, steps: int) -> None:
        self._draw, self._records, self._source, self._steps = draw, records, source, steps
        self._generators = SecretGenerators(source, "reading")
        self._drawn: dict[int, Tensor] = {}
        self._batches: Iterator[Any] = iter(())
        self._next = -1  # the step whose batch `_batches` yields next; -1: start a new iterator

    @property
    def begun(self) -> bool:
        """Whether a draw was made."""
        return bool(self._drawn)

    def read(self, step: int) -> Any:
        """The batch of a step. After an error the same draw is read again."""
        if self._next != step:
            self._batches = self._records.stream(self._draws_from(step))
        self._next = -1
        with self._generators.hidden(self._records.run_users_code):
            batch = next(self._batches)
        self._drawn = {number: rows for number, rows in self._drawn.items() if number >= step}
        self._next = step + 1
        return batch

    def _draws_from(self, first: int) -> Iterator[Tensor]:
        """Stored draws, which worker processes have read ahead, then new ones."""
        for step in range(first, self._steps):
            if step not in self._drawn:
                self._drawn[step] = self._draw(step, self._source)
            yield self._drawn[step]
