"""Compares one record of every batch with the same record collated alone."""

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
    """An error that is returned instead of a batch.

    It is not raised, because a worker process would wrap the message.
    """

    def __init__(self, error: DataError) -> None:
        self.error = error


class Compared:
    """A collate function that compares one record of every batch with itself alone.

    Args:
        collate: the user's.
        proven: the form of records (`form_of`) for which it is proven that every row is made from
            its record alone. Batches of such records are not compared.

    Guarantees:
        The compared record is drawn with the system's random numbers, independently of the data and
        of the generators of user code. The comparison does not change the states of torch's and
        Python's generators. NumPy's is not restored, which would take longer than everything else:
        a collate function that draws is rejected before (`MappedRecords`), and in training the
        generators are secret and restored after every batch (`SecretGenerators`). Errors show no
        value.
    """

    def __init__(self, collate: Collate, proven: Any = None) -> None:
        self._collate, self._proven = collate, proven

    def __call__(self, found: Any) -> Any:
        """Collate and compare. torch calls this, also in worker processes."""
        if isinstance(found, _Bulk):
            return self._compared(found.batch, found.alone, found.place)
        if not isinstance(found, list):
            return Refused(varies("data", "structure"))
        if len(found) < 2 or (self._proven is not None and all_of_form(found, self._proven)):
            return self._collate(found)
        place = secrets.randbelow(len(found))
        # A copy, since a collate function may modify its argument.
        return self._compared(found, [copy.deepcopy(found[place])], place)

    def _compared(self, found: Any, one: Any, place: int) -> Any:
        try:
            with _quick_generators_kept():
                # First, and copied, because the batch may be written to the same memory.
                alone = each(Tensor.clone, self._collate(one))
        except Exception:  # messages of user code may show values
            alone = None
        batch = self._collate(found)
        if alone is None:
            return Refused(different_alone("data"))
        error = difference(batch, alone, place)
        return batch if error is None else Refused(error)


def accepted(batch: Any) -> Any:
    """The batch; raises the error if there is one instead."""
    if isinstance(batch, Refused):
        raise batch.error
    return batch


class _Bulk:
    """A batch made by a data set's `__getitems__`, and one of its records, read again."""

    def __init__(self, batch: Any, alone: Any, place: int) -> None:
        self.batch, self.alone, self.place = batch, alone, place


class ReadTwice:
    """A data set that returns whole batches, and reads one record of each a second time.

    Args:
        dataset: with `__getitems__`. All other attributes are passed through.
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
