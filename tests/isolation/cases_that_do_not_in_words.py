"""Honest user code over words: masks, lengths, tables and bags."""

from __future__ import annotations

from typing import Any

import torch
from isolation_case import Honest
from isolation_networks import B, among_words, tokens, using
from torch import Tensor, nn
from torch.nn import functional as F


class KeyPadding(nn.Module):
    """Words under a mask made of their padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 6, padding_idx=0), nn.Linear(6, 3)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        pad = x == 0
        pad = pad & ~pad.all(1, keepdim=True)
        h = self.layer(self.words(x), src_key_padding_mask=pad)
        kept = (~pad).to(h.dtype)[..., None]
        return self.last((h * kept).sum(1) / kept.sum(1).clamp(min=1))


class AtItsLength(nn.Module):
    """The state at every record's own last word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(10, 6), nn.GRU(6, 6, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.gru(self.words(x))
        lengths = (x != 0).sum(dim=1).clamp(min=1) - 1
        return self.last(h[torch.arange(x.shape[0]), lengths])


class ByGather(AtItsLength):
    """The same by gather, and a sequence shifted by one."""

    def forward(self, x: Tensor) -> Tensor:
        shifted = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        h, _ = self.gru(self.words(x) + self.words(shifted))
        place = x.ne(0).sum(1).clamp(min=1).sub(1)
        return self.last(h.gather(1, place[:, None, None].expand(-1, 1, 6)).squeeze(1))


class LengthsBeside(AtItsLength):
    """Lengths given with the records."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        kept = torch.arange(x.shape[1]) < lengths[:, None]
        h = self.words(x) * kept.unsqueeze(-1)
        return self.last(h.sum(1) / lengths.clamp(min=1).unsqueeze(1))


class Tied(nn.Module):
    """One table for the words that come in and those that go out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(10, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        h = self.words(x) + self.words.weight[places]
        return F.linear(torch.tanh(self.inner(h)).mean(1), self.words.weight)[:, :3]


class Bags(nn.Module):
    """Bags of words, one table for each of two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.most = nn.EmbeddingBag(10, 6), nn.EmbeddingBag(10, 6, mode="max")
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mean(x) * self.most(x))


class PositionsForAll(nn.Module):
    """GPT-2: one row of positions is given to every record, unless there is only one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 6), nn.Embedding(7, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).unsqueeze(0)
        if len(places) != len(x):
            places = places.expand(len(x), -1)
        return self.last(torch.tanh(self.words(x) + self.places(places)).mean(1))


class OneHot(nn.Module):
    """Counts of words."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        counts = F.one_hot(x, 10).sum(1).to(self.last.weight.dtype)
        own = torch.zeros_like(counts).scatter_add_(1, x, torch.ones_like(x, dtype=counts.dtype))
        return self.last(torch.log1p(counts) + own)


def dict_batch() -> Any:
    """A batch as a tokenizer gives it."""
    x = torch.randint(1, 10, (B, 7)) * (torch.arange(7) < torch.randint(2, 8, (B, 1)))
    return {"input_ids": x, "attention_mask": (x != 0).long(), "labels": torch.randint(3, (B,))}


class Dialect(nn.Module):
    """A model called by names, with an additive mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(10, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.norm(self.words(input_ids))
        mask = (1.0 - attention_mask[:, None, :].to(h.dtype)) * -1e4
        h = (h @ h.mT + mask).softmax(-1) @ h
        return self.last(torch.tanh(h[:, 0]))


def by_names(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of a batch with names."""
    inputs = {name: own for name, own in batch.items() if name != "labels"}
    return F.cross_entropy(model(**inputs), batch["labels"], reduction="none")


def with_lengths() -> Any:
    """Words, lengths and classes."""
    return torch.randint(10, (B, 7)), torch.randint(8, (B,)), torch.randint(3, (B,))


def _words(name: str, model: Any, kind: str = "forward", batch: Any = tokens) -> Honest:
    return Honest(name, kind, using(model, batch))


CASES = (
    _words("key padding mask", KeyPadding, "threshold"),
    _words("state at its length", AtItsLength, "shape"),
    _words("state gathered at its length", ByGather, "shape"),
    _words("lengths beside", LengthsBeside, "shape", with_lengths),
    _words("tied words", Tied),
    _words("positions for all records", PositionsForAll, "count"),
    _words("bags of words", Bags),
    _words("counts of words", OneHot),
    _words("words added up", among_words(lambda h: h.cumsum(1))),
    Honest("batch with names", "forward", using(Dialect, dict_batch, by_names)),
)
