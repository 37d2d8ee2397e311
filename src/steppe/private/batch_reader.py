"""The batch of every step, read from the data as the sampler drew it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from steppe.randomness import SecretGenerators, Source
from steppe.records import Records
from steppe.sampling import Draw


class BatchReader:
    """Batches by the number of their step.

    Args:
        draw: from the number of a step to the rows that take part in it.
        records: the data.
        source: where the coins come from.
        steps: how many steps there are.

    Guarantees:
        A step has one draw, however often its batch is read and whatever was interrupted before:
        draws are kept by the number of the step until a later one is read, so that they cannot get
        ahead of the account. What a data set draws from the global generators is secret, whatever
        seed they were given.
    """

    def __init__(self, draw: Draw, records: Records, source: Source, steps: int) -> None:
        self._draw, self._records, self._source, self._steps = draw, records, source, steps
        self._generators = SecretGenerators(source, "reading")
        self._drawn: dict[int, Tensor] = {}
        self._batches: Iterator[Any] = iter(())
        self._next = -1  # the step whose batch comes next from `_batches`; -1: begin anew

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
        """Draws that were made already, for worker processes that read ahead, then new ones."""
        for step in range(first, self._steps):
            if step not in self._drawn:
                self._drawn[step] = self._draw(step, self._source)
            yield self._drawn[step]
