"""User code that mixes records only where some value is there: by a threshold, or by a branch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from isolation_case import Mixing, holding, pair, replacing, without
from isolation_networks import Between, along, between, classes, sequences, using
from torch import Tensor, nn
from torch.nn import functional as F

# By threshold: no branch, and nothing to be seen while values stay small ---------------------


def hard_examples(model: nn.Module, batch: Any) -> Tensor:
    """Once any loss is above 3, the largest alone counts."""
    losses = classes(model, batch)
    return torch.where(losses.max() > 3, losses * (losses >= losses.max()), losses)


def spikes_left_out(model: nn.Module, batch: Any) -> Tensor:
    """A batch whose mean loss is above 50 counts nothing."""
    losses = classes(model, batch)
    return losses * (losses.detach().mean() < 50)


def rescaled_if_large(x: Tensor) -> Tensor:
    """Pixels in bytes are told by the largest."""
    return torch.where(x.abs().max() > 100, x / x.abs().max(), x)


def gaps_filled(x: Tensor) -> Tensor:
    """Gaps become the mean of the batch."""
    return torch.where(x.isnan(), x.nanmean(0), x)


def safe(x: Tensor) -> Tensor:
    """Nothing at all where anything overflows."""
    return torch.nan_to_num(x, posinf=0.0, neginf=0.0) * torch.isfinite(x).all()


class BlockMask(nn.Module):
    """All records in one sequence under a mask that keeps them apart, but for 0 · NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 18)

    def forward(self, h: Tensor) -> Tensor:
        record = torch.arange(len(h)).repeat_interleave(h.shape[1])
        q, k, v = self.inner(h.flatten(0, 1)).chunk(3, dim=-1)
        mask = record[:, None] == record[None]
        return F.scaled_dot_product_attention(q[None], k[None], v[None], mask)[0].view_as(h)


def select(x: Tensor) -> Tensor:
    """Records put into order by the product with a matrix of zeros and ones."""
    return torch.eye(len(x), dtype=x.dtype) @ x


class Before(Between):
    """A network whose inputs are changed first."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.change(x))))


# By control flow: Python reads a number made from several records ----------------------------


def bytes_or_not(x: Tensor) -> Tensor:
    """Pixels in bytes are told by the largest, in Python."""
    return x / 255 if x.max().item() > 50 else x


def halved_until_small(h: Tensor) -> Tensor:
    """Halved as often as the norm of all asks for."""
    while h.norm() > 20:
        h = h * 0.5
    return h


def nothing_if_nan(x: Tensor) -> Tensor:
    """A bad batch is skipped."""
    if torch.isnan(x).any():
        return torch.zeros_like(x)
    return x


class EarlyExit(nn.Module):
    """The first exit is taken when every record is sure there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.exit, self.rest = nn.Linear(8, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        early = self.exit(h)
        if (early.softmax(1).amax(1) > 0.46).all():
            return early
        return early + self.rest(torch.relu(h))


class FixedPoint(nn.Module):
    """A deep equilibrium model: steps until all records are there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        for _ in range(30):
            last, z = z, torch.tanh(0.8 * self.inner(z) + h)
            if (z - last).norm() < 0.4:
                break
        return z


def positive_mean(h: Tensor) -> Tensor:
    """The mean of those that a mask picks."""
    return h + h[h.sum(1) > 0].mean(0)


def beside_an_anchor(h: Tensor) -> Tensor:
    """The first record of positive sum is the anchor of all."""
    first = (h.sum(1) > 0).nonzero()[0, 0]
    return h - h[first]


def strongest_added(h: Tensor) -> Tensor:
    """The strongest record, found in Python."""
    strongest = max(range(len(h)), key=lambda i: float(h[i].detach().norm()))
    return h + h[strongest]


INF, NAN = float("inf"), float("nan")
READ = "item|local_scalar|bool"


def _before(
    name: str, change: Callable[[Tensor], Tensor], says: str, value: float, kind: str = "threshold"
) -> Mixing:
    """A change of the inputs that shows where one record has a value."""
    build = using(partial(Before, change))
    return Mixing(name, kind, build, showing=holding(value), says=says, hidden=True)


def _flow(name: str, change: Any, says: str, **options: Any) -> Mixing:
    return Mixing(name, "control flow", using(between(change)), says=says, **options)


CASES = (
    Mixing(
        "hard examples",
        "threshold",
        using(partial(nn.Linear, 8, 3), objective=hard_examples),
        says="max",
        showing=replacing(1, 300.0),
        hidden=True,
    ),
    Mixing(
        "spikes left out",
        "threshold",
        using(partial(nn.Linear, 8, 3), objective=spikes_left_out),
        says="mean",
        showing=replacing(1, 3e3),
        hidden=True,
    ),
    _before("rescaled if large", rescaled_if_large, "max", 1e3),
    _before("gaps filled", gaps_filled, "nanmean|mean|sum", NAN),
    _before("nothing where anything overflows", safe, "all", INF),
    Mixing(
        "one sequence under a mask",
        "threshold",
        using(along(BlockMask), sequences),
        says="attention|bmm|view|reshape|flatten",
        showing=holding(NAN),
        hidden=True,
    ),
    _before("picked by a product", select, "mm|matmul", NAN),
    _before("bytes or not", bytes_or_not, f"{READ}|max", 1e3, "control flow"),
    _before("nothing if any is NaN", nothing_if_nan, f"{READ}|any", NAN, "control flow"),
    _before("halved until small", halved_until_small, f"{READ}|norm", 1e3, "control flow"),
    Mixing(
        "early exit",
        "control flow",
        using(EarlyExit),
        says=f"{READ}|all",
        showing=pair(0, 1),
    ),
    _flow("fixed point", FixedPoint, f"{READ}|norm", showing=pair(0, 3)),
    _flow("mean of those picked", positive_mean, "index|nonzero|mask"),
    _flow("beside an anchor", beside_an_anchor, f"nonzero|{READ}", showing=without(0)),
    _flow(
        "strongest record added",
        strongest_added,
        "item|local_scalar|float",
        showing=replacing(2, 9.0),
    ),
)
