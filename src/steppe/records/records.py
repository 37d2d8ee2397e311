"""The protocol of a data set for sampling: numbered records that can be read in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from steppe.errors import DataError


class Records(ABC):
    """A data set as the sampler sees it; `as_records` makes one from what a user has.

    Attributes:
        also_read: what was read off the records beforehand, for the privacy statement.
        given: the data that they were made from; None if it is not known.
        run_users_code: whether reading them may run Python that is not torch's own.
        isolation: how it is known that each row of a batch is made from one record. "proven": from
            the operations of the collate function, or because it is torch's own. "compared": in
            every batch one random record is collated alone too, and must equal its row.
    """

    also_read: tuple[str, ...] = ()
    given: Any = None
    run_users_code: bool = True
    isolation: str = "proven"

    @abstractmethod
    def __len__(self) -> int:
        """Number of records."""

    @abstractmethod
    def batch(self, rows: torch.Tensor) -> Any:
        """The batch of these rows, in this order.

        Args:
            rows: One-dimensional int64 tensor of row numbers; may be empty.

        Returns:
            Tensors with one entry for each row, in the structure of the data set. No row gives
            tensors with first dimension 0 and the shape and type of any other batch.
        """

    def example(self) -> Any:
        """A batch without records: the structure, types and shapes of all others."""
        return self.batch(torch.zeros(0, dtype=torch.long, device="cpu"))

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[Any]:
        """The batch of each index tensor, in the order given.

        Args:
            batches: Index tensors as for `batch`; may be endless.

        Returns:
            One batch for each index tensor. After an error this iterator is at its end; call
            `stream` again with the index tensors that have no batch yet.

        Guarantees:
            It ends after the last index tensor or with an error, also where reading a record
            raises StopIteration.
        """
        # A generator, in which a stray StopIteration becomes an error; `map` would end.
        for rows in batches:
            yield self.batch(rows)


def bad_data(name: str, value: str, rule: str, remedy: str) -> DataError:
    """Build the error for data of the wrong form; `value` describes, it never shows records."""
    return DataError(f"{name}={value}: {rule}; {remedy}.")


def no_records() -> DataError:
    """The error for an empty data set."""
    return bad_data("data", "no records", "must not be empty", "give at least one record")


def require_real(name: str, tensor: torch.Tensor) -> None:
    """Refuse complex numbers: synthetic records are real, so checks on them would miss a half."""
    if tensor.is_complex():
        raise bad_data(
            name,
            f"array of type {str(tensor.dtype).removeprefix('torch.')}",
            "must hold real numbers",
            "give torch.view_as_real of it, and use torch.view_as_complex in the model",
        )


def require_numbered(data: Any) -> None:
    """Refuse data whose records cannot be asked for by number."""
    kind = type(data).__name__
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise bad_data(
            "data",
            kind,
            "must return any record by its index, since each is sampled on its own in every step",
            "give a map-style data set with __len__ and __getitem__",
        )
    if not hasattr(data, "__len__"):
        raise bad_data(
            "data", kind, "must have __len__", "add it: it says how many records can take part"
        )
