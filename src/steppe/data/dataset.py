"""A data set: two splits of arrays, their classes and their source."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from steppe.data.scaling import scaled_targets


class SplitArrays(NamedTuple):
    """A decoded data set: pictures as uint8 (records, height, width[, colour]), labels as int64."""

    x_train: NDArray[np.generic]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.generic]
    y_test: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set.

    Args:
        x: pictures as uint8 (records, height, width[, colour]), or float32 (records, features).
        y: labels as int64, one a record; or float32 numbers to predict, a row a record.

    Examples:
        >>> split = Split(np.full((3, 4, 4), 255, np.uint8), np.zeros(3, np.int64))
        >>> len(split), split.tensors()[0].shape, split.tensors()[0].max().item()
        (3, torch.Size([3, 1, 4, 4]), 1.0)
    """

    x: NDArray[np.generic]
    y: NDArray[np.int64] | NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.y)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The split for training: float32 inputs, int64 labels or float32 numbers.

        Returns:
            Pictures in [0, 1] as (records, colours, height, width); tables as they are. Both are
            copies, so that writing to them leaves the split alone.

        Guarantees:
            Every record is converted by itself with constants: no mean or scale is read from the
            data.
        """
        labels = torch.tensor(self.y)
        x = torch.tensor(self.x)
        if x.dtype != torch.uint8:
            return x.float(), labels
        if x.ndim == 3:
            x = x.unsqueeze(1)
        elif x.ndim == 4:
            x = x.permute(0, 3, 1, 2).contiguous()
        return x.float().div_(255), labels


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set for training.

    Args:
        name: its name.
        train: the records to train on.
        test: the records to evaluate on; they are never trained on.
        classes: number of labels, a declared constant; None where the targets are numbers.
        source: where the bytes came from.
        sha256: fingerprint of the decoded arrays of a public data set, see `digest`; empty for
            users' own data, whose hash would tell about the records.
        bounds: used to clamp and scale the inputs of users' own files, in the form that
            `steppe.data.read` takes; None for inputs as they are.
        columns: the names of a table's columns, in the order of the inputs.
        also_read: what was read from the records to find the bounds, as text for the privacy
            statement.
        target_bounds: numbers to predict were scaled from these to [−1, 1]; None if they are as
            they were.
        held_out: the share of the records that were kept out of training as the test part; None if
            the test part was given.

    Examples:
        >>> part = Split(np.zeros((5, 4), np.float32), np.zeros(5, np.int64))
        >>> dataset = Dataset("mine", part, Split(part.x[:0], part.y[:0]), 2, "memory", "")
        >>> train, test = dataset.records()
        >>> len(train), test
        (5, None)
    """

    name: str
    train: Split
    test: Split
    classes: int | None
    source: str
    sha256: str
    bounds: Any = None
    columns: tuple[str, ...] = ()
    also_read: tuple[str, ...] = ()
    target_bounds: tuple[float, float] | None = None
    held_out: float | None = None

    def records(self) -> tuple[TensorDataset, TensorDataset | None]:
        """The two parts as training and evaluation take them; None for a test part without records.

        Returns:
            Data sets of the tensors that `Split.tensors` makes. That of the records to train on
            has `also_read`, so that the statement of whoever trains on it is complete.
        """
        test = TensorDataset(*self.test.tensors()) if len(self.test) else None
        train = TensorDataset(*self.train.tensors())
        train.also_read = self.also_read  # type: ignore[attr-defined]
        return train, test

    def completed(
        self, target_bounds: tuple[float, float] | None, held_out: float | None
    ) -> Dataset:
        """This data set with its targets scaled, and with what is declared about it."""
        train, test = self.train, self.test
        if target_bounds is not None:
            train = Split(train.x, scaled_targets(train.y, target_bounds, clamped=True))
            test = Split(test.x, scaled_targets(test.y, target_bounds, clamped=False))
        return replace(self, train=train, test=test, target_bounds=target_bounds, held_out=held_out)


@dataclass(frozen=True, eq=False)
class MappedDataset:
    """A user's map-style data sets, fetched record by record.

    Args:
        name: where it came from.
        train: `__len__` and `__getitem__`, as `make_private` takes it.
        test: the same for evaluation, or None.
        classes: declared number of labels, or None.
    """

    name: str
    train: Any
    test: Any | None
    classes: int | None

    def records(self) -> tuple[Any, Any | None]:
        """The two parts as training and evaluation take them; None for a test part without records.

        This calls `len` of the test part.
        """
        has_test = self.test is not None and len(self.test) > 0
        return self.train, self.test if has_test else None


def digest(arrays: SplitArrays) -> str:
    """SHA-256 of decoded arrays: names, types, shapes and values, whatever file carried them.

    Examples:
        >>> x, y = np.zeros((1, 2, 2), np.uint8), np.zeros(1, np.int64)
        >>> digest(SplitArrays(x, y, x, y))[:16]
        'fd9312ba632dc493'
    """
    sha = hashlib.sha256()
    for name, array in zip(SplitArrays._fields, arrays, strict=True):
        # Little-endian, so that the fingerprint is the same on every machine.
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        sha.update(f"{name} {plain.dtype.str} {plain.shape}\n".encode())
        sha.update(plain.data)
    return sha.hexdigest()
