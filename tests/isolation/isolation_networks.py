"""Small networks, batches and objectives that many cases of the isolation table share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from isolation_case import Build, Objective
from torch import Tensor, nn
from torch.nn import functional as F

Change = Callable[..., Any]  # a function of a tensor, or what makes a module
B = 6  # records of a batch; other sizes are often the same, so that none tells which axis is which


def features() -> Any:
    """Rows of eight numbers, of three classes."""
    return torch.randn(B, 8), torch.randint(3, (B,))


def sequences() -> Any:
    """Five steps of eight numbers, of three classes."""
    return torch.randn(B, 5, 8), torch.randint(3, (B,))


def pictures() -> Any:
    """Three channels of 8 × 8 pixels, of three classes."""
    return torch.randn(B, 3, 8, 8), torch.randint(3, (B,))


def numbers() -> Any:
    """Rows of eight numbers, with a number to predict."""
    return torch.randn(B, 8), torch.randn(B)


def tokens() -> Any:
    """Seven words of ten, of three classes."""
    return torch.randint(10, (B, 7)), torch.randint(3, (B,))


def padded_text() -> Any:
    """Seven words of ten and the next words, padded by 0 and −100 from a length of its own on."""
    words = torch.randint(1, 10, (B, 8))
    kept = torch.arange(8) < torch.randint(3, 9, (B, 1))
    return words[:, :-1] * kept[:, :-1], words[:, 1:].masked_fill(~kept[:, 1:], -100)


def classes(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of every record."""
    *inputs, target = batch
    return F.cross_entropy(model(*inputs), target, reduction="none")


def squares(model: nn.Module, batch: Any) -> Tensor:
    """Squared error of every record."""
    x, target = batch
    return F.mse_loss(model(x).squeeze(1), target, reduction="none")


def using(
    model: Callable[[], nn.Module],
    batch: Callable[[], Any] = features,
    objective: Objective = classes,
) -> Build:
    """How a case is made of its three parts."""
    return lambda: (model(), objective, batch())


def between(change: Change, outputs: int = 3) -> Callable[[], nn.Module]:
    """A maker of `Between`."""
    return lambda: Between(_new(change), outputs)


def along(change: Change) -> Callable[[], nn.Module]:
    """A maker of `Along`."""
    return lambda: Along(_new(change))


def within(change: Change, channels: int = 4) -> Callable[[], nn.Module]:
    """A maker of `Within`."""
    return lambda: Within(_new(change), channels)


def among_words(change: Change) -> Callable[[], nn.Module]:
    """A maker of `Words`."""
    return lambda: Words(_new(change))


def _new(change: Change) -> Change:
    """A class, or one with its arguments in a partial, makes a new module every time."""
    maker = change.func if isinstance(change, functools.partial) else change
    return change() if isinstance(maker, type) else change


class Between(nn.Module):
    """A network of two layers with something between them, on `(B, 6)`."""

    def __init__(self, change: Change, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(8, 6), nn.Linear(6, outputs), change

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(torch.tanh(self.first(x))))


class Along(Between):
    """The same for sequences, on `(B, 5, 6)`, averaged over the steps at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(torch.tanh(self.first(x))).mean(1))


class Within(nn.Module):
    """The same for pictures, on `(B, 4, 8, 8)`, averaged over the pixels at the end."""

    def __init__(self, change: Change, channels: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(channels, 3)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.change(torch.tanh(self.first(x))) + 0.1)
        return self.last(h.flatten(2).mean(2))


class Words(nn.Module):
    """Words looked up, changed on `(B, 7, 6)`, and averaged."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.words, self.last, self.change = nn.Embedding(10, 6), nn.Linear(6, 3), change

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(self.words(x)).mean(1))
