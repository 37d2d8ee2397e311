"""User code that treats the first record, the last, or each by its number, in another way."""

from __future__ import annotations

from collections.abc import Callable

import torch
from isolation_case import Mixing, without
from isolation_networks import between, using
from torch import Tensor

FIRST = torch.tensor([0])
BANK = torch.linspace(0, 300, 3000).view(500, 6)


def first_is_zero(h: Tensor) -> Tensor:
    """A constant in place of the first."""
    h = h.clone()
    h[0] = 0
    return h


def first_is_large(h: Tensor) -> Tensor:
    """The first is multiplied."""
    h = h.clone()
    h[0] *= 100
    return h


def last_is_turned(h: Tensor) -> Tensor:
    """The last has another sign."""
    h = h.clone()
    h[-1].neg_()
    return h


def diagonal_is_zero(h: Tensor) -> Tensor:
    """Another feature of each."""
    h = h.repeat(1, 20)
    h.diagonal().zero_()
    return h[:, :6]


def first_of_all(h: Tensor) -> Tensor:
    """The first among all, taken apart."""
    first, *others = h.unbind()
    return torch.stack([first * 100, *others])


def feature_by_number(h: Tensor) -> Tensor:
    """Feature i of record i."""
    return h + h.repeat(1, 20).gather(1, torch.arange(len(h))[:, None])


def feature_by_size(h: Tensor) -> Tensor:
    """The feature whose number is the size of the batch."""
    return h.repeat(1, 100).gather(1, torch.full((len(h), 6), len(h)))


def from_bank(h: Tensor) -> Tensor:
    """Row i of a table for record i, picked by the record."""
    return h + BANK[: len(h)].gather(1, h.argmax(1, keepdim=True))


def among_zeros(h: Tensor) -> Tensor:
    """As many zeros as records beside each number."""
    return h + torch.diag_embed(h[:, 0]).logsumexp(1, keepdim=True)


def _place(name: str, change: Callable[[Tensor], Tensor], which: int = 0) -> Mixing:
    build = using(between(change))
    return Mixing(name, "forward", build, says="place", showing=without(which))


CASES = (
    _place("first is zero", first_is_zero),
    _place("first is large", first_is_large),
    _place("last is turned", last_is_turned, -1),
    _place("lower triangle", lambda h: h.tril()),
    _place("upper triangle", lambda h: h.triu()),
    _place("diagonal is zero", diagonal_is_zero),
    _place("first filled", lambda h: h.index_fill(0, FIRST, 0.0)),
    _place("added to the first", lambda h: h.index_add(0, FIRST, torch.ones(1, 6, dtype=h.dtype))),
    _place("copied to the first", lambda h: h.index_copy(0, FIRST, h.new_ones(1, 6) * 9)),
    _place("scattered to the first", lambda h: h.scatter(0, FIRST.expand(1, 6), 9.0)),
    _place("put at the first", lambda h: h.index_put((FIRST,), h.new_tensor(9.0))),
    _place("first of all", first_of_all),
    _place("feature by number", feature_by_number),
    Mixing(
        "feature by size",
        "count",
        using(between(feature_by_size)),
        says="constant in gather",
        showing=without(),
    ),
    Mixing(
        "row of a table by number",
        "forward",
        using(between(from_bank)),
        says="place|constant in gather",
        showing=without(0),
    ),
    _place("among zeros", among_zeros, -1),
)
