"""The batches of a private run: exactly the planned number, each drawn once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from steppe._validate import positive_integer
from steppe.errors import MisuseError
from steppe.sampling._records import Records


class PrivateLoader(Iterator[Any]):
    """Goes once through the planned steps and hands out the batch of each.

    A loop that stops early and starts again goes on with the next step; it does not begin anew.

    Args:
        records: The data, see `records`.
        indices: The rows of every step, see `Poisson.batches`; at least `steps` of them.
        steps: Number of batches.

    Guarantees:
        Batch t holds the rows of index tensor t, in that order, whatever the number of workers.
        Empty batches are handed out like all others: leaving one out would show that nobody took
        part. Not more than `steps` index tensors are drawn.

    Examples:
        >>> from steppe.noise import SecureSource
        >>> from steppe.sampling import Poisson, records
        >>> data = records((torch.randn(100, 3), torch.arange(100)))
        >>> rows = Poisson().batches(100, 10, steps=4, source=SecureSource())
        >>> loader = PrivateLoader(data, rows, steps=4)
        >>> [x.shape[1] for x, y in loader], loader.step
        ([3, 3, 3, 3], 4)
    """

    def __init__(self, records: Records, indices: Iterable[torch.Tensor], steps: int) -> None:
        self._steps = positive_integer("steps", steps)
        self._batches = records.stream(islice(indices, self._steps))
        self._step = 0

    @property
    def step(self) -> int:
        """How many batches have been handed out."""
        return self._step

    def __len__(self) -> int:
        return self._steps

    def __next__(self) -> Any:
        if self._step == self._steps:
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            raise MisuseError(
                f"indices={self._step} batches: must cover all {self._steps} steps; "
                "draw them with the same number of steps."
            ) from None
        self._step += 1
        return batch
