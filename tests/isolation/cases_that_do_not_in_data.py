"""Honest collate functions and random views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from isolation_case import Honest
from isolation_networks import B, Between, between, pictures, using, within
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import default_collate

Records = list[Any]


def rows_alone() -> Records:
    """Records as a data set gives them: eight numbers and a class."""
    return [(torch.randn(8), torch.randint(3, ())) for _ in range(B)]


def steps_alone() -> Records:
    """Records of four to seven steps of eight numbers."""
    return [(torch.randn(4 + i % 4, 8), torch.randint(3, ())) for i in range(B)]


def named_rows() -> Records:
    """Records with a text."""
    return [(torch.randn(8), torch.randint(3, ()), name) for name in ("a", "b", "c", "b", "a", "d")]


def to_declared_length(records: Records) -> Any:
    """Padded to the length that the data set has at most."""
    steps = torch.stack([F.pad(x, (0, 0, 0, 9 - len(x))) for x, _ in records])
    return steps, torch.stack([y for _, y in records])


def standardised(records: Records) -> Any:
    """Standard scores of each record, in NumPy."""
    x = np.stack([record[0].numpy() for record in records])
    with np.errstate(all="ignore"):
        x = (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-6)
    return torch.as_tensor(x), torch.stack([record[1] for record in records])


def gaps_filled(records: Records) -> Any:
    """Gaps become a constant of the data set."""
    x, y = default_collate(records)
    return torch.where(x.isnan(), torch.linspace(-1, 1, 8, dtype=x.dtype), x), y


def bytes_or_not(records: Records) -> Any:
    """Pixels in bytes are told by each record's own largest."""
    return default_collate([(x / 255 if x.max() > 100 else x, y) for x, y in records])


def transposed(records: Records) -> Any:
    """A stack along the last axis, and back."""
    x = torch.stack([record[0] for record in records], dim=1)
    return x.T.contiguous(), torch.tensor([int(record[1]) for record in records])


def by_dictionary(records: Records) -> Any:
    """Texts by a vocabulary that was fixed beforehand."""
    vocabulary = {"a": 0, "b": 1, "c": 2, "d": 3}
    numbers = torch.tensor([vocabulary[record[2]] for record in records])
    x = torch.stack([record[0] for record in records])
    return x + numbers[:, None], torch.stack([record[1] for record in records])


# Random views --------------------------------------------------------------------------------


def flipped(x: Tensor) -> Tensor:
    """Each picture by a coin of its own."""
    coin = torch.rand(x.shape[0], 1, 1, 1) < 0.5
    return torch.where(coin, x.flip(3), x)


def cropped(x: Tensor) -> Tensor:
    """One place for all, drawn without looking."""
    top, left = torch.randint(3, (2,)).tolist()
    return F.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, top : top + 8, left : left + 8]


def shifted(x: Tensor) -> Tensor:
    """A place of its own for each picture, by gather."""
    place = (torch.arange(8) + torch.randint(8, (len(x), 1))) % 8
    return x.gather(3, place[:, None, None].expand(-1, 3, 8, -1))


def erased(x: Tensor) -> Tensor:
    """A square is filled with each picture's own mean."""
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:6, 2:6] = True
    return torch.where(mask, x.mean((2, 3), keepdim=True), x)


def jittered(x: Tensor) -> Tensor:
    """Brightness and contrast for each picture."""
    contrast, light = 1 + 0.2 * torch.randn(2, len(x), 1, 1, 1, dtype=x.dtype)
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * contrast + mean * light


def turned_for_all(x: Tensor) -> Tensor:
    """Every second view is turned, whatever is in it."""
    return x.rot90(1, (2, 3)) if torch.rand(()) < 0.5 else x


def noised(x: Tensor) -> Tensor:
    """Noise of a fixed size."""
    return x + 0.1 * torch.randn_like(x)


class Averaged(Between):
    """Steps averaged at the end."""

    def __init__(self) -> None:
        super().__init__(torch.tanh)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(1)


def _collated(
    name: str, collate: Callable[[Records], Any], batch: Any = rows_alone, model: Any = None
) -> Honest:
    return Honest(name, "collate", using(model or between(torch.tanh), batch), collate)


def _augmented(name: str, augment: Callable[[Tensor], Tensor]) -> Honest:
    return Honest(name, "augment", using(within(torch.tanh), pictures), augment=augment)


CASES = (
    _collated("stacked", default_collate),
    _collated("padded to a declared length", to_declared_length, steps_alone, Averaged),
    _collated("standard scores of each", standardised),
    _collated("gaps filled by a constant", gaps_filled),
    _collated("bytes or not, each", bytes_or_not),
    _collated("stacked the other way", transposed),
    _collated("texts by a dictionary", by_dictionary, named_rows),
    _augmented("flipped by a coin", flipped),
    _augmented("cropped at one place", cropped),
    _augmented("shifted by its own number", shifted),
    _augmented("erased with its own mean", erased),
    _augmented("brightness of each", jittered),
    _augmented("turned by one coin", turned_for_all),
    _augmented("noise of a fixed size", noised),
)
