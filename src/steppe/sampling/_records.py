"""What a data set must be for sampling: numbered records that can be taken in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from steppe.errors import DataError


class Records(ABC):
    """A data set as the sampler sees it; `records` makes one from what a user has."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of records."""

    @abstractmethod
    def take(self, rows: torch.Tensor) -> Any:
        """The batch of these rows, in this order.

        Args:
            rows: One-dimensional int64 tensor of row numbers; may be empty.

        Returns:
            Tensors with one entry for each row, in the structure of the data set. No row gives
            tensors with first dimension 0 and the shape and type of any other batch.
        """

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[Any]:
        """The batch of each index tensor, in the order given.

        Args:
            batches: Index tensors as for `take`; may be endless.

        Returns:
            One batch for each index tensor.
        """
        return map(self.take, batches)


def bad_data(name: str, value: str, rule: str, remedy: str) -> DataError:
    """Build the error for data of the wrong form; `value` describes, it never shows records."""
    return DataError(f"{name}={value}: {rule}; {remedy}.")


def no_records() -> DataError:
    """The error for an empty data set."""
    return bad_data("data", "no records", "must not be empty", "give at least one record")
