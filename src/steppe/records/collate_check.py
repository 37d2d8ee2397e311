"""One record of every batch is collated alone and compared with its row."""

from __future__ import annotations

import copy
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.errors import DataError
from steppe.records.batch_form import difference, different_alone, varies
from steppe.utils.batches import each
from steppe.utils.record_form import all_of_form

Collate = Callable[[Any], Any]


class Refused:
    """What comes in place of a batch that must not be used.

    It is returned, not raised, so that a worker process need not put its own words around it.
    """

    def __init__(self, error: DataError) -> None:
        self.error = error


class Compared:
    """A collate function that compares one record of every batch with itself alone.

    Args:
        collate: the user's.
        proven: the form of records for which it is proven that every row is made from its record
            alone, as `form_of` gives it. Batches of such records are not compared.

    Guarantees:
        Which record is compared is drawn from the system's random numbers, not by the data and not
        from the generators that user code draws from. Torch's and Python's are left as the batch
        leaves them. NumPy's are not put back, which would take longer than all the rest: a function
        that draws is refused before (`MappedRecords`), and in training the generators are secret
        and come back after every batch (`SecretGenerators`). Nothing that is returned in place of a
        batch shows a value.
    """

    def __init__(self, collate: Collate, proven: Any = None) -> None:
        self._collate, self._proven = collate, proven

    def __call__(self, found: Any) -> Any:
        """Called by torch where batches are made, in worker processes too."""
        if isinstance(found, _Bulk):
            return self._compared(found.batch, found.alone, found.place)
        if not isinstance(found, list):
            return Refused(varies("data", "structure"))
        if len(found) < 2 or (self._proven is not None and all_of_form(found, self._proven)):
            return self._collate(found)
        place = secrets.randbelow(len(found))
        # A copy, since a collate function may take apart what it is given.
        return self._compared(found, [copy.deepcopy(found[place])], place)

    def _compared(self, found: Any, one: Any, place: int) -> Any:
        try:
            with _quick_generators_kept():
                # First, and copied: it may lie in memory that the batch is then written to.
                alone = each(Tensor.clone, self._collate(one))
        except Exception:  # the words of user code may show values
            alone = None
        batch = self._collate(found)
        if alone is None:
            return Refused(different_alone("data"))
        error = difference(batch, alone, place)
        return batch if error is None else Refused(error)


def accepted(batch: Any) -> Any:
    """The batch, or the error that came in its place."""
    if isinstance(batch, Refused):
        raise batch.error
    return batch


class _Bulk:
    """A batch that a data set made by itself, and one of its records, read again."""

    def __init__(self, batch: Any, alone: Any, place: int) -> None:
        self.batch, self.alone, self.place = batch, alone, place


class ReadTwice:
    """A data set that gives whole batches, and reads one record of each a second time.

    Args:
        dataset: with `__getitems__`. All attributes are its own.
    """

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset

    def __len__(self) -> int:
        return len(vars(self)["_dataset"])

    def __getitem__(self, row: int) -> Any:
        return vars(self)["_dataset"][row]

    def __getitems__(self, rows: list[int]) -> Any:
        dataset = vars(self)["_dataset"]
        place = secrets.randbelow(len(rows))
        with _generators_kept():
            alone = dataset.__getitems__([rows[place]])
        return _Bulk(dataset.__getitems__(rows), alone, place)

    def __getattr__(self, name: str) -> Any:
        if "_dataset" not in vars(self):  # while it is unpickled
            raise AttributeError(name)
        return getattr(vars(self)["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_dataset"], name, value)

    def __getstate__(self) -> Any:
        return (vars(self)["_dataset"],)

    def __setstate__(self, state: Any) -> None:
        (vars(self)["_dataset"],) = state


@contextmanager
def _quick_generators_kept() -> Iterator[None]:
    of_torch, of_python = torch.default_generator.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        random.setstate(of_python)


@contextmanager
def _generators_kept() -> Iterator[None]:
    of_numpy = np.random.get_state(legacy=False)
    try:
        with _quick_generators_kept():
            yield
    finally:
        np.random.set_state(of_numpy)
