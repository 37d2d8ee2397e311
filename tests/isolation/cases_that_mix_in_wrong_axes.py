"""User code that takes the records for something else: for time, pixels, channels or features."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from isolation_case import Build, Mixing
from isolation_networks import (
    Between,
    along,
    between,
    numbers,
    sequences,
    using,
)
from torch import Tensor, nn
from torch.nn import functional as F


class PairsUp(nn.Module):
    """A layer for twice the features, reached by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h.view(-1, 12)).view(-1, 6)


class WrongHeads(nn.Module):
    """Heads taken apart by a view where a transpose is due."""

    def forward(self, h: Tensor) -> Tensor:
        heads = h.reshape(2, len(h), h.shape[1], 3)
        return (heads * heads.softmax(2)).transpose(0, 1).reshape(h.shape)


class BatchAsTime(nn.Module):
    """A recurrent layer that wants the time first and gets the records first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        return self.lstm(h)[0]


class OneLongSequence(nn.Module):
    """All records in one sequence, which a recurrent layer reads from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 6, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return self.gru(h.flatten(0, 1)[None])[0].view_as(h)


class Attends(nn.Module):
    """Attention that wants the time first and gets the records first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, h: Tensor) -> Tensor:
        return self.attention(h, h, h, need_weights=False)[0]


class Samples(nn.Module):
    """Three noisy samples of each record, whose outputs are averaged over other records' ones."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        many = x.repeat_interleave(3, dim=0)
        out = self.net(many + 0.1 * torch.randn_like(many))
        return out.view(3, len(x), 3).mean(0)  # right after x.repeat(3, 1)


class Transposed(nn.Module):
    """Layer normalisation that was given the wrong way round."""

    def forward(self, h: Tensor) -> Tensor:
        return F.layer_norm(h.t(), (len(h),)).t()


class GroupsOfAll(nn.Module):
    """Group normalisation of the whole batch as one picture."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h.t()[None])[0].t()


class Instances(nn.Module):
    """Instance normalisation over the axis that holds the records."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(6)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h.permute(1, 2, 0)).permute(2, 0, 1)


class OverRecords(nn.Module):
    """A convolution whose length is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        return self.conv(h.t()[None])[0].t()


class GateByAccident(Between):
    """A number for each record beside as many features: it multiplies the wrong axis."""

    def __init__(self) -> None:
        super().__init__(lambda h: h)
        self.gate = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h * torch.sigmoid(self.gate(x)).squeeze(1))


def gated(h: Tensor) -> Tensor:
    """A gated unit that was split along the wrong axis."""
    value, gate = h.chunk(2, dim=0)
    return torch.cat([value * torch.sigmoid(gate), gate])


def fourier(h: Tensor) -> Tensor:
    """Mixing of tokens by Fourier transforms, on records that have no tokens."""
    return torch.fft.fft2(h).real


def _case(name: str, build: Build, kind: str = "forward", **options: Any) -> Mixing:
    return Mixing(name, kind, build, **options)


CASES = (
    _case(
        "layer norm over all axes",
        using(between(lambda h: F.layer_norm(h, h.shape))),
        says="layer_norm",
    ),
    _case("layer norm transposed", using(between(Transposed)), says="layer_norm"),
    _case("group norm of one picture", using(between(GroupsOfAll)), says="group_norm"),
    _case("instance norm over records", using(along(Instances), sequences), says="norm"),
    _case("Fourier over records", using(between(fourier)), says="fft"),
    _case("gated along the records", using(between(gated)), says="chunk|split|mul|cat|sigmoid"),
    _case("view that pairs records up", using(between(PairsUp)), says="view|linear|mm|shape"),
    _case(
        "reshaped where a transpose was due",
        using(between(lambda h: h + h.t().reshape(h.shape))),
        says="view|reshape|clone|add",
    ),
    _case(
        "heads by a wrong view",
        using(along(WrongHeads), sequences),
        says="view|reshape|mean",
    ),
    _case("convolution over records", using(between(OverRecords)), says="conv"),
    _case("batch taken for time", using(along(BatchAsTime), sequences), says="lstm|rnn"),
    _case(
        "one long sequence",
        using(along(OneLongSequence), sequences),
        says="gru|rnn|select|unbind|split|mm",
    ),
    _case(
        "attention over records",
        using(along(Attends), sequences),
        says="attention|bmm|softmax",
    ),
    _case(
        "transformer layer with the records first",
        using(along(partial(nn.TransformerEncoderLayer, 6, 2, 8, dropout=0.0)), sequences),
        says="attention|bmm|softmax",
    ),
    _case("samples of other records", using(Samples), says="view|reshape|mean"),
    _case("gate on the wrong axis", using(GateByAccident), says="mul|broadcast", kind="shape"),
    _case(
        "outputs beside targets of another shape",
        using(
            between(lambda h: h, 1),
            numbers,
            lambda model, batch: (model(batch[0]) - batch[1]).square().mean(1),
        ),
        says="sub|broadcast|pairs",
        kind="shape",
    ),
)
