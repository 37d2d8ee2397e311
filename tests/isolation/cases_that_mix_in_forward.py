"""User code in whose forward pass records meet: statistics, order and products."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from isolation_case import Build, Mixing, without
from isolation_networks import (
    along,
    between,
    numbers,
    pictures,
    sequences,
    squares,
    tokens,
    using,
    within,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Standardised(nn.Module):
    """Batch normalisation, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, h: Tensor) -> Tensor:
        variance, mean = torch.var_mean(h, dim=0, correction=0)
        return (h - mean) * torch.rsqrt(variance + 1e-5) * self.scale + self.shift


class Ghost(nn.Module):
    """Statistics of groups of two."""

    def forward(self, h: Tensor) -> Tensor:
        groups = h.view(-1, 2, h.shape[1])
        return (groups - groups.mean(1, keepdim=True)).view_as(h)


class Spread(nn.Module):
    """The spread of the batch as a feature, as progressive GANs have it."""

    def forward(self, h: Tensor) -> Tensor:
        spread = h.std(0).mean()
        return torch.cat([h[:, :5], spread.expand(len(h), 1)], 1)


class Previous(nn.Module):
    """Attention to the record before."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        memory = h.roll(1, dims=0)
        return h + self.attention(h, memory, memory, need_weights=False)[0]


class BatchGraph(nn.Module):
    """Every record gathers from those that it is like."""

    def forward(self, h: Tensor) -> Tensor:
        likeness = torch.matmul(h, h.transpose(0, 1)) / 6**0.5
        return h + torch.matmul(likeness.softmax(-1), h)


class Buckets(nn.Module):
    """Records of one bucket share what they have in it."""

    def forward(self, h: Tensor) -> Tensor:
        bucket = (h[:, :1] > 0).long().expand_as(h)
        pooled = torch.zeros(2, 6, dtype=h.dtype).scatter_add(0, bucket, h)
        return h + pooled.gather(0, bucket)


class Table(nn.Module):
    """A memory with a place for each of two kinds: the last record of a kind is what stays."""

    def forward(self, h: Tensor) -> Tensor:
        kind = (h[:, 0] > 0).long()
        table = torch.zeros(2, 6, dtype=h.dtype)
        table[kind] = h.detach()
        return h + table[kind]


class SortedAndLeft(nn.Module):
    """Longest first, as packing wants it, and never put back."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = (x != 0).sum(1).argsort(descending=True, stable=True)
        return self.last(self.words(x[order]).mean(1))


class SharedDropout(nn.Module):
    """One mask for all records, the surer the weaker they are."""

    def forward(self, h: Tensor) -> Tensor:
        keep = torch.sigmoid(4 * h.detach().mean())
        return h * torch.bernoulli(keep.expand(6)) / keep


class ThroughNumPy(nn.Module):
    """A scale found outside of torch."""

    def forward(self, h: Tensor) -> Tensor:
        values = h.detach().numpy()
        return h / float(abs(values).max())


class Checkpointed(nn.Module):
    """A block that is computed twice, with statistics of the batch in it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), Standardised())

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=False)


class OutsideTheGradient(nn.Module):
    """Statistics that are made where autograd does not look."""

    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            mean, std = h.mean(), h.std()
        return (h - mean) / (std + 1e-5)


class InPlace(nn.Module):
    """Each record takes a part of the one before, in place."""

    def forward(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[1:] += 0.5 * h[:-1].clone()
        return h


class Whitened(nn.Module):
    """Features made independent over the batch."""

    def forward(self, h: Tensor) -> Tensor:
        covariance = h.T @ h / len(h) + 0.1 * torch.eye(6, dtype=h.dtype)
        return h @ torch.linalg.cholesky(covariance)


def neighbours(h: Tensor) -> Tensor:
    """A window over the records."""
    return torch.cat([h, h[:1]]).unfold(0, 2, 1).mean(-1)


def ranks(h: Tensor) -> Tensor:
    """Numbers times their ranks in the batch."""
    return h * h.argsort(0).argsort(0).to(h.dtype)


def within_quantiles(h: Tensor) -> Tensor:
    """Cut at quantiles of the batch."""
    low, high = torch.quantile(h.detach(), 0.2), torch.quantile(h.detach(), 0.8)
    return h.clamp(low, high)


def _case(name: str, build: Build, kind: str = "forward", **options: Any) -> Mixing:
    return Mixing(name, kind, build, **options)


CASES = (
    _case("batch norm", using(between(partial(nn.BatchNorm1d, 6))), says="batch_?norm|BatchNorm"),
    _case(
        "batch norm of pictures without memory",
        using(
            within(partial(nn.BatchNorm2d, 4, track_running_stats=False)),
            pictures,
        ),
        says="batch_?norm|BatchNorm",
    ),
    _case("batch norm by hand", using(between(Standardised)), says="var_mean|var|mean"),
    _case("ghost batch norm", using(between(Ghost)), says="mean|view|shape"),
    _case("centred", using(between(lambda h: h - h.mean(0))), says="mean"),
    _case("centred by the middle", using(between(lambda h: h - h.median(0)[0])), says="med"),
    _case("whole-batch mean", using(between(OutsideTheGradient)), says="mean|std"),
    _case("spread of the batch", using(between(Spread)), says="std|var"),
    _case("whitened", using(between(Whitened)), says="mm|matmul"),
    _case(
        "unit length over records",
        using(between(lambda h: F.normalize(h, dim=0))),
        says="norm",
    ),
    _case("softmax over records", using(between(lambda h: h.softmax(0))), says="softmax"),
    _case(
        "divided by the largest",
        using(between(lambda h: h / h.abs().max())),
        says="max",
    ),
    _case("clamped by quantiles", using(between(within_quantiles)), says="quantile|sort"),
    _case("sorted", using(between(lambda h: h.sort(0).values)), says="sort"),
    _case(
        "the largest two of a feature stay",
        using(between(lambda h: h * (h >= h.topk(2, dim=0).values[-1]))),
        says="topk",
    ),
    _case("ranks", using(between(ranks)), says="sort"),
    _case("running sum", using(between(lambda h: h.cumsum(0))), says="cumsum"),
    _case("rolled", using(between(lambda h: h + h.roll(1, 0))), says="roll|add"),
    _case("turned round", using(between(lambda h: h + h.flip(0))), says="flip|add"),
    _case(
        "beside the first record",
        using(between(lambda h: h - h[:1])),
        showing=without(0),
        says="slice|select|sub",
    ),
    _case("the largest of all added", using(between(lambda h: h + h.amax(0))), says="max"),
    _case("window over records", using(between(neighbours)), says="unfold|cat|slice|mean"),
    _case("in place from the one before", using(between(InPlace)), says="add|copy|slice|mul"),
    _case(
        "all pairs by einsum",
        using(between(lambda h: torch.einsum("bd,cd,ce->be", h, h, h))),
        says="einsum|bmm|mm",
    ),
    _case("gram matrix", using(between(lambda h: h @ (h.T @ h))), says="mm|matmul"),
    _case("attention between records", using(between(BatchGraph)), says="mm|matmul"),
    _case(
        "distances between records",
        using(between(lambda h: h * torch.exp(-torch.cdist(h, h)).mean(1, keepdim=True))),
        says="cdist",
    ),
    _case(
        "attention to the record before", using(along(Previous), sequences), says="roll|attention"
    ),
    _case("buckets of records", using(between(Buckets)), says="scatter"),
    _case("table by kind", using(between(Table)), says="index_put", showing=without()),
    _case(
        "sorted by length and left so",
        using(SortedAndLeft, tokens),
        says="sort|index",
    ),
    _case(
        "one mask for all, by their mean",
        using(between(SharedDropout)),
        says="mean|bernoulli",
    ),
    _case("scaled through NumPy", using(between(ThroughNumPy)), says="numpy|NumPy"),
    _case(
        "checkpointed statistics", using(between(Checkpointed)), says="var|mean", kind="checkpoint"
    ),
    _case(
        "ensemble of records",
        using(
            between(lambda h: h, 1),
            numbers,
            lambda model, batch: squares(model, (batch[0] + batch[0].mean(0), batch[1])),
        ),
        says="mean",
    ),
)
