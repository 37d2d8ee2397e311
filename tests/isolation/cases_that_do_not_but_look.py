"""Honest results by ways that ask values or move rows: no proof from operations need take them.

Python reads numbers made from records, or records change places on the way, and nothing comes of
it. A case that is refused here is refused without need, and one that is accepted is no mistake.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from isolation_case import Honest, Objective
from isolation_networks import Between, along, between, sequences, tokens, using
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class Watched(Between):
    """Says so where an input is not finite, and goes on as ever."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.isfinite(x).all():
            logging.getLogger(__name__).warning("inputs are not finite")
        return super().forward(x)


class Packs(nn.Module):
    """Runs a layer on the words that are no padding, and lays them back."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.last = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        keep = x != 0
        out = torch.zeros(*x.shape, 6)
        out[keep] = torch.tanh(self.inner(self.words(x)[keep]))
        return self.last(out.mean(1))


class PacksForTheLSTM(nn.Module):
    """Packed for a recurrent layer, which sorts by length and puts back."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(10, 6), nn.LSTM(6, 6, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x != 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(self.words(x), lengths, True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=7)
        return self.last(out.sum(1) / lengths[:, None])


class SortedAndBack(nn.Module):
    """Longest first, and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = (x != 0).sum(1).argsort(descending=True, stable=True)
        return self.last(self.words(x[order]).mean(1))[order.argsort()]


class ShuffledAndBack(nn.Module):
    """MoCo: records change places at random, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        order = torch.randperm(len(h))
        return torch.tanh(self.inner(h[order]))[order.argsort()]


class Sparse(nn.Module):
    """Mixtral: every expert gets the rows that chose it, by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        gate, chosen = self.router(h).softmax(-1).max(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            out = out.index_add(0, rows, gate[rows, None] * expert(h[rows]))
        return out


class UntilAllAreDone(nn.Module):
    """As many steps as the longest record needs; those that are done stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.last = nn.Embedding(10, 6), nn.GRUCell(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x != 0).sum(1)
        state = torch.zeros(len(x), 6)
        for t in range(int(lengths.max())):
            state = torch.where(
                (t < lengths)[:, None], self.cell(self.words(x[:, t]), state), state
            )
        return self.last(state)


class SkipsTheMask(nn.Module):
    """No mask where none is needed, which transformers asks to be faster."""

    def forward(self, h: Tensor) -> Tensor:
        mask = h[..., 0] > -0.5
        if bool(mask.all()):
            return (h @ h.mT).softmax(-1) @ h
        scores = (h @ h.mT).masked_fill(~mask[:, None], -1e30)
        return scores.softmax(-1) @ h


class Reentrant(nn.Module):
    """A checkpointed block of the older kind, which torch.autograd.grad refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=True)


def of_distributions(model: nn.Module, batch: Any) -> Tensor:
    """torch.distributions looks at every number that it is given, to refuse some."""
    x, y = batch
    return -torch.distributions.Categorical(logits=model(x).clamp(-9, 9).nan_to_num()).log_prob(y)


def records_in_a_loop(model: nn.Module, batch: Any) -> Tensor:
    """One record at a time."""
    x, y = batch
    return torch.stack(
        [nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
    )


def _case(name: str, kind: str, model: Any, batch: Any = tokens) -> Honest:
    return Honest(name, kind, using(model, batch))


def _own(name: str, kind: str, objective: Objective) -> Honest:
    return Honest(name, kind, using(between(torch.tanh), objective=objective))


CASES = (
    Honest("inputs looked at", "control flow", using(lambda: Watched(torch.tanh))),
    _case("words packed", "shape", Packs),
    _case("packed for the LSTM", "shape", PacksForTheLSTM),
    _case("sorted and put back", "forward", SortedAndBack),
    Honest("shuffled and put back", "forward", using(between(ShuffledAndBack))),
    Honest("experts by rows", "shape", using(between(Sparse))),
    _case("until all are done", "control flow", UntilAllAreDone),
    Honest("mask left out", "control flow", using(along(SkipsTheMask), sequences)),
    Honest("block checkpointed the older way", "checkpoint", using(between(Reentrant))),
    Honest(
        "distributions that look", "loss", using(between(torch.tanh), objective=of_distributions)
    ),
    Honest("records in a loop", "count", using(between(torch.tanh), objective=records_in_a_loop)),
)
