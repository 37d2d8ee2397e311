"""Honest user code over steps: attention, recurrence, positions and windows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from isolation_case import Honest
from isolation_networks import B, along, sequences, using
from torch import Tensor, nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    """A recurrent layer, either way round."""

    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.layer, self.batch_first = kind(6, 6, batch_first=batch_first), batch_first

    def forward(self, h: Tensor) -> Tensor:
        if self.batch_first:
            return self.layer(h)[0]
        return self.layer(h.permute(1, 0, 2))[0].permute(1, 0, 2)


class Bidirectional(nn.Module):
    """Two layers that read both ways, whose last states are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 3, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        out, (last, _) = self.layer(h)
        joined = last.view(2, 2, len(h), 3)[-1].transpose(0, 1).flatten(1)
        return out + joined[:, None]


class CellLoop(nn.Module):
    """A cell, step by step, from zeros; the states are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        state = h.new_zeros(len(h), 6), h.new_zeros(len(h), 6)
        out = []
        for step in h.unbind(1):
            state = self.cell(step, state)
            out.append(state[0])
        return torch.stack(out, dim=1)


class WrittenIn(nn.Module):
    """The same into a tensor of zeros, with a gate by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 6)

    def forward(self, h: Tensor) -> Tensor:
        out, state = torch.zeros_like(h), h.new_zeros(h.shape[0], 6)
        for t in range(h.shape[1]):
            state = torch.tanh(self.inner(torch.cat([h[:, t], state], dim=1)))
            out[:, t] = state
        return out


class TimeMajor(nn.Module):
    """Steps first, all rows in one product, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        flat = h.transpose(0, 1).reshape(-1, 6)
        return torch.tanh(self.inner(flat)).view(h.shape[1], -1, 6).transpose(0, 1)


class Heads(nn.Module):
    """Attention by hand, with records and heads in one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        records, steps, _ = h.shape

        def heads(x: Tensor) -> Tensor:
            return x.view(records, steps, 2, 3).transpose(1, 2).reshape(records * 2, steps, 3)

        q, k, v = map(heads, self.qkv(h).chunk(3, dim=-1))
        weights = torch.bmm(q, k.transpose(1, 2)).div(3**0.5).softmax(-1)
        found = torch.bmm(weights, v).view(records, 2, steps, 3).transpose(1, 2)
        return self.out(found.reshape(records, steps, 6))


class Causal(nn.Module):
    """GPT's attention: one product for all, and a mask cut from a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, 8, 8, dtype=torch.bool)))

    def forward(self, h: Tensor) -> Tensor:
        b, t, d = h.size()
        q, k, v = (x.view(b, t, 2, d // 2).transpose(1, 2) for x in self.qkv(h).split(d, dim=2))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / 3**0.5
        scores = scores.masked_fill(~self.mask[:, :, :t, :t], float("-inf"))
        return (
            torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v).transpose(1, 2).reshape(b, t, d)
        )


class Fused(nn.Module):
    """The same by torch's own function, with the mask or without."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.causal = nn.Linear(6, 18), causal

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        mask = None if self.causal else torch.ones(h.shape[1], h.shape[1]).tril().log()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return out.transpose(1, 2).flatten(2)


class RelativePositions(nn.Module):
    """A bias for each distance, looked up by constant numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("far", torch.arange(5)[:, None] - torch.arange(5)[None] + 4)

    def forward(self, h: Tensor) -> Tensor:
        bias = self.bias[self.far.view(-1)].view(5, 5, 2).permute(2, 0, 1)
        heads = h.view(len(h), 5, 2, 3).transpose(1, 2)
        scores = heads @ heads.mT + bias[None]
        return (scores.softmax(-1) @ heads).transpose(1, 2).reshape(h.shape)


class Rotary(nn.Module):
    """Positions turned in, from a table that is made in the first pass."""

    def forward(self, h: Tensor) -> Tensor:
        if not hasattr(self, "angles"):
            speed = 100.0 ** -torch.arange(0, 1, 1 / 3)
            self.register_buffer("angles", torch.arange(16)[:, None] * speed, persistent=False)
        angles = self.angles[: h.shape[1]].to(h.dtype)
        turned = torch.view_as_complex(h.reshape(*h.shape[:-1], 3, 2).contiguous())
        turned = turned * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(2)


class ClassToken(nn.Module):
    """A learned token before every record, and learned places."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = (
            nn.Parameter(torch.randn(1, 1, 6)),
            nn.Parameter(torch.randn(1, 6, 6)),
        )
        self.layer = nn.TransformerEncoderLayer(
            6, 2, 8, dropout=0.1, batch_first=True, norm_first=True
        )

    def forward(self, h: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], dim=1) + self.places
        return self.layer(h)[:, :1].expand(-1, 5, -1)


class LearnedQueries(nn.Module):
    """As many questions as there are records, asked of each."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(B, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        queries = self.queries.unsqueeze(0).repeat(h.size(0), 1, 1)
        return self.attention(queries, h, h)[0]


class MultiHead(nn.Module):
    """torch's attention, either way round."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention, self.batch_first = (
            nn.MultiheadAttention(6, 2, batch_first=batch_first),
            batch_first,
        )

    def forward(self, h: Tensor) -> Tensor:
        h = h if self.batch_first else h.transpose(0, 1)
        out = self.attention(h, h, h, need_weights=False)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Chunked(nn.Module):
    """Attention within windows of the sequence, padded to whole ones."""

    def forward(self, h: Tensor) -> Tensor:
        h = F.pad(h, (0, 0, 0, 1))
        windows = h.view(len(h), 3, 2, 6).flatten(0, 1)
        found = (windows @ windows.mT).softmax(-1) @ windows
        return found.unflatten(0, (-1, 3)).flatten(1, 2)[:, :5]


class CausalConv(nn.Module):
    """A dilated convolution over time that sees the past alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 2, dilation=2)

    def forward(self, h: Tensor) -> Tensor:
        return self.conv(F.pad(h.mT, (2, 0))).mT


class StateSpace(nn.Module):
    """A linear recurrence by a running sum, as in Mamba's plain form."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(6))

    def forward(self, h: Tensor) -> Tensor:
        steps = torch.arange(h.shape[1], dtype=h.dtype)[:, None]
        grown = torch.exp(self.decay * steps)
        return (h * grown).cumsum(1) / grown


def fourier(h: Tensor) -> Tensor:
    """FNet: over steps and features."""
    return torch.fft.fft2(h, dim=(1, 2)).real / 5


def spectrum(h: Tensor) -> Tensor:
    """There and back, without the highest frequency."""
    found = torch.fft.rfft(h, dim=1)
    return torch.fft.irfft(found[:, :2], n=h.shape[1], dim=1)


def pooled(h: Tensor) -> Tensor:
    """The largest over time, beside the steps."""
    return h + h.amax(dim=1, keepdim=True) + F.max_pool1d(h.mT, 3, 1, 1).mT


def _along(name: str, change: Any, kind: str = "forward") -> Honest:
    return Honest(name, kind, using(along(change), sequences))


CASES = (
    _along("LSTM with the records first", partial(Recurrent, nn.LSTM, True)),
    _along("LSTM with the time first", partial(Recurrent, nn.LSTM, False)),
    _along("GRU with the records first", partial(Recurrent, nn.GRU, True)),
    _along("GRU with the time first", partial(Recurrent, nn.GRU, False)),
    _along("LSTM both ways", Bidirectional),
    _along("cell by cell", CellLoop, "state"),
    _along("written into zeros", WrittenIn, "state"),
    _along("time-major product", TimeMajor, "shape"),
    _along("heads beside records", Heads, "shape"),
    _along("causal attention by hand", Causal),
    _along("causal attention fused", partial(Fused, True)),
    _along("attention with a mask of zeros", partial(Fused, False)),
    _along("relative positions", RelativePositions),
    _along("rotary positions", Rotary, "state"),
    _along("class token", ClassToken),
    _along("learned queries", LearnedQueries),
    _along("attention, records first", partial(MultiHead, True)),
    _along("attention, time first", partial(MultiHead, False)),
    _along(
        "transformer layer, records first",
        partial(nn.TransformerEncoderLayer, 6, 2, 8, dropout=0.1, batch_first=True),
    ),
    _along("windows of a sequence", Chunked, "shape"),
    _along("causal convolution", CausalConv),
    _along("linear recurrence", StateSpace),
    _along("running sum over time", lambda h: h.cumsum(1)),
    _along("time turned round", lambda h: h.flip(1).roll(1, 1) * h),
    _along("Fourier over time", fourier),
    _along("Fourier and back", spectrum),
    _along("pooled over time", pooled),
    _along(
        "centred over time",
        lambda h: (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-3),
    ),
    _along("softmax over time", lambda h: h * h.softmax(1)),
    _along("steps by number", lambda h: h.index_select(1, torch.tensor([4, 0, 2, 1, 3])) - h),
    _along("steps unfolded", lambda h: F.pad(h, (0, 0, 1, 1)).unfold(1, 3, 1).mean(-1)),
)
