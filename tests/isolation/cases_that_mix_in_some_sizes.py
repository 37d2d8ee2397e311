"""User code that mixes records by their sizes: the longest of a batch, or how many there are."""

from __future__ import annotations

from typing import Any

import torch
from isolation_case import Mixing, Pair, among, batch_of, holding, records_of, without
from isolation_networks import B, between, classes, padded_text, using
from torch import Tensor, nn
from torch.nn import functional as F

# By shape: what is cut and laid out depends on the others ------------------------------------


class CutToLongest(nn.Module):
    """Words cut to the longest record, before a mean over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        longest = max((row != 0).sum().item() for row in x)
        return self.last(torch.tanh(self.words(x[:, : max(longest, 1)])).mean(1))


class CutByTensor(CutToLongest):
    """The same by one maximum, and a layer that reads backwards from there."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : int((x != 0).sum(1).max())]
        return self.last(self.gru(self.words(x))[0][:, -1])


class Ragged(CutToLongest):
    """All words that are no padding in one row, and a window that looks over its ends."""

    def __init__(self) -> None:
        super().__init__()
        self.window = nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        kept = x != 0
        row = self.window(h[kept].T[None])[0].T
        return self.last(torch.zeros_like(h).masked_scatter(kept[..., None], row).mean(1))


def short_text() -> Any:
    """Seven words of ten; no record is longer than six."""
    x = torch.randint(1, 10, (B, 7)) * (torch.arange(7) < torch.randint(2, 6, (B, 1)))
    return x, torch.randint(3, (B,))


def words_alone() -> Any:
    """The words of padded text, with classes."""
    return padded_text()[0], torch.randint(3, (B,))


# By count ------------------------------------------------------------------------------------


def over_len(model: nn.Module, batch: Any) -> Tensor:
    """Each loss as its part of the mean."""
    return classes(model, batch) / len(batch[0])


def over_shape(model: nn.Module, batch: Any) -> Tensor:
    """A temperature for the size of the batch."""
    x, y = batch
    temperature = torch.log(torch.tensor(1.0 + x.shape[0]))
    return F.cross_entropy(model(x) / temperature, y, reduction="none")


def centred_when_many(h: Tensor) -> Tensor:
    """Small batches are left alone."""
    return h - h.mean(0) if len(h) >= 40 else h


def taken_for_a_square(h: Tensor) -> Tensor:
    """As many rows as columns must be distances, which are made the same both ways."""
    return (h + h.T) / 2 if h.shape[0] == h.shape[1] else h


def row_numbers(h: Tensor) -> Tensor:
    """A number for each place in the batch, taken for a place in a sequence."""
    return h + 0.3 * torch.arange(len(h), dtype=h.dtype)[:, None]


def evenly_spread(h: Tensor) -> Tensor:
    """Noise levels from 0 to 1 over the batch."""
    return h * torch.linspace(0, 1, len(h), dtype=h.dtype)[:, None]


def crowd_without_first(batch: Any) -> Pair:
    """Of forty records, the first is left out."""
    crowd = among(40)(batch)[0]
    return without(0)(crowd)


class DropPath(nn.Module):
    """Stochastic depth that divides by how many were kept."""

    def forward(self, h: Tensor) -> Tensor:
        kept = (torch.rand(len(h), 1) < 0.7).to(h.dtype)
        return h + h.square() * kept * len(h) / kept.sum().clamp(min=1)


class Capacity(nn.Module):
    """Experts that take so many records each and leave the others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(6, 2), nn.Parameter(torch.randn(2, 6, 6) / 3)

    def forward(self, h: Tensor) -> Tensor:
        gate, chosen = self.router(h).softmax(-1).max(-1)
        route = F.one_hot(chosen, 2)
        place = (route.cumsum(0) * route).sum(-1)
        route = route * (gate * (place <= 12))[:, None]
        return h + torch.einsum("bd,edf,be->bf", h, self.experts, route)


class Chunks(nn.Module):
    """Memory is saved in groups of four, each divided by its largest number."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([part / part.abs().max() for part in h.split(4)])


def twice_when_alone(h: Tensor) -> Tensor:
    """No record is in what is done in another way."""
    return h * (torch.ones(1) + torch.ones(1) if len(h) == 1 else torch.ones(1))


def chance_when_alone(h: Tensor) -> Tensor:
    """And torch leaves out a copy for one record."""
    h = h.t().contiguous().t()
    return h * (torch.rand(1) if len(h) == 1 else torch.ones(1))


def other_law_when_alone(h: Tensor) -> Tensor:
    """Random numbers that no record decides, with another mean for one record."""
    return h * (torch.rand(1) * torch.rand(1) if len(h) == 1 else torch.rand(1))


def down_to_one(batch: Any) -> Pair:
    """Two records, and the first of them."""
    found = records_of(batch)[:2]
    return batch_of(batch, found), batch_of(batch, found[:1])


def _count(name: str, change: Any, says: str, **options: Any) -> Mixing:
    build = using(between(change))
    return Mixing(name, "count", build, says=says, **{"showing": without(), **options})


SIZE = "len|size|shape|number|count"
CASES = (
    Mixing(
        "cut to the longest",
        "shape",
        using(CutToLongest, short_text),
        says="item|local_scalar|shape|max",
        showing=holding(5),
        hidden=True,
    ),
    Mixing(
        "read back from the longest",
        "shape",
        using(CutByTensor, short_text),
        says="item|local_scalar|max",
        showing=holding(5),
    ),
    Mixing("one ragged row", "shape", using(Ragged, words_alone), says="index|mask|nonzero"),
    Mixing(
        "part of the mean",
        "count",
        using(between(torch.tanh), objective=over_len),
        says=f"div|{SIZE}",
        showing=without(),
    ),
    Mixing(
        "temperature by size",
        "count",
        using(between(torch.tanh), objective=over_shape),
        says=f"div|{SIZE}",
        showing=without(),
    ),
    _count("centred when many", centred_when_many, f"mean|{SIZE}", showing=among(40), hidden=True),
    _count("taken for a square", taken_for_a_square, SIZE),
    _count("numbers of rows", row_numbers, f"arange|{SIZE}", showing=without(0)),
    _count("evenly spread", evenly_spread, f"linspace|{SIZE}"),
    _count("drop path by how many stay", DropPath, f"sum|{SIZE}"),
    _count("room for twelve", Capacity, "cumsum", showing=crowd_without_first, hidden=True),
    _count("groups of four", Chunks, "max|split"),
    _count("twice when alone", twice_when_alone, SIZE, showing=down_to_one, hidden=True),
    _count("chance when alone", chance_when_alone, SIZE, showing=down_to_one, hidden=True),
    _count("another law when alone", other_law_when_alone, SIZE, showing=down_to_one, hidden=True),
)
