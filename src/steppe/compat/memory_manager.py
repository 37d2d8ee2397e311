"""Large batches in physical batches that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from torch.optim import Optimizer

from steppe.compat.loader import PoissonLoader
from steppe.utils import validation


class BatchMemoryManager:
    """Splits every drawn batch into physical batches that fit into memory.

    The loop stays as it is: `optimizer.step()` adds the clipped gradients of a physical batch, and
    moves the weights once, at the end of the drawn batch.

    Args:
        data_loader: from `make_private`.
        max_physical_batch_size: the most records that go through the module at once.
        optimizer: from `make_private`.

    Guarantees:
        A drawn batch is one step of the account, however many physical batches it has. If the block
        is left inside a drawn batch, the sum so far is dropped, and the next pass begins with that
        batch.
    """

    def __init__(
        self, *, data_loader: PoissonLoader, max_physical_batch_size: int, optimizer: Optimizer
    ) -> None:
        if not isinstance(data_loader, PoissonLoader):
            raise validation.fail(
                "data_loader",
                type(data_loader).__name__,
                "must be the loader that make_private returned",
                "call make_private first",
            )
        if optimizer is not data_loader.run.optimizer:
            raise validation.fail(
                "optimizer",
                type(optimizer).__name__,
                "must be the optimizer of the loader",
                "pass what make_private returned",
            )
        self._loader = data_loader
        self._largest = validation.positive_integer(
            "max_physical_batch_size", max_physical_batch_size
        )

    def __enter__(self) -> PhysicalLoader:
        return PhysicalLoader(self._loader, self._largest)

    def __exit__(self, *exception: object) -> None:
        self._loader.run.abandon()


class PhysicalLoader:
    """One pass over the drawn batches, in physical batches. Their number is random.

    Args:
        loader: from `make_private`.
        largest: the most records in a physical batch.
    """

    def __init__(self, loader: PoissonLoader, largest: int) -> None:
        self.dataset = loader.dataset
        self._loader, self._largest = loader, largest

    def __iter__(self) -> Iterator[Any]:
        return self._loader.physical_batches(self._largest)

    def __bool__(self) -> bool:
        """True, as for any object without a length."""
        return True

    def __len__(self) -> NoReturn:
        raise TypeError(
            "len=unknown: the number of physical batches is random; use len() of the loader that "
            "make_private returned, which is the number of steps of a pass, also for schedulers."
        )
