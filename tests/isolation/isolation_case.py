"""What a case of the isolation table is, and how two batches come to differ in one record.

A case is a piece of user code: a model, an objective and a batch. In a case that mixes, one record
moves what the others give; in one that does not, none can. Neither is taken on trust: see
`isolation_truth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as numbers_from
from typing import Any

import torch
from torch import Tensor, nn

from steppe.utils.batches import count, each, rows, tensors_in

Objective = Callable[[nn.Module, Any], Tensor]
Build = Callable[[], tuple[nn.Module, Objective, Any]]
Pair = tuple[Any, Any]

# Where the records meet, or look as if they did.
KINDS = (
    "forward", "loss", "backward", "hook", "state", "control flow", "collate", "augment",
    "threshold", "shape", "count", "checkpoint",
)  # fmt: skip
_SEED = 5


@dataclass(frozen=True)
class Case:
    """One piece of user code.

    Attributes:
        name: of the case, once in the table.
        kind: one of `KINDS`.
        build: makes model, objective and batch; `make` gives it random numbers.
        collate: makes a batch of the list of records that `make` then gives in its place.
        augment: makes one random view of the first tensor of a batch.
        seed: of the random numbers of a pass; of one that shows it, where records mix by chance.
    """

    name: str
    kind: str
    build: Build
    collate: Callable[[list[Any]], Any] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    seed: int = 0

    def make(self) -> tuple[nn.Module, Objective, Any]:
        """A new model, the objective, a function of (model, batch) that returns one loss for each
        record, and a batch of synthetic records; the same weights and records every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return self.build()

    def losses(self, model: nn.Module, objective: Objective, batch: Any) -> Tensor:
        """The objective on what has been collated and augmented, where the case does that."""
        if self.collate is not None:
            batch = self.collate(batch)
        if self.augment is not None:
            batch = (self.augment(batch[0]), *batch[1:])
        return objective(model, batch)


@dataclass(frozen=True)
class Mixing(Case):
    """Code in which one record moves what the others give.

    Attributes:
        showing: from the batch of `make` to two batches that differ in one record.
        says: what a good error says, as a pattern: the operation, or one of several names for it.
        hidden: whether records like those of `make` do not show it.
    """

    showing: Callable[[Any], Pair] | None = None
    says: str = ""
    hidden: bool = False

    def shows(self) -> Pair:
        """Two batches, one record of which was replaced or left out between them, such that the
        losses or gradients of the others differ.

        In a case of state the batches come first, and the batch of `make` in the next pass differs.
        """
        batch = self.make()[2]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED + 1)
            return (self.showing or replacing())(batch)


@dataclass(frozen=True)
class Honest(Case):
    """Code in which every record stands alone, though it looks otherwise."""


# How two batches come to differ in one record ------------------------------------------------


def replacing(which: int = 1, scale: float = 3.0) -> Callable[[Any], Pair]:
    """One record is replaced by a larger one with other integers."""

    def showing(batch: Any) -> Pair:
        found = records_of(batch)
        found[which] = like(found, scale)
        return batch, batch_of(batch, found)

    return showing


def without(which: int = -1) -> Callable[[Any], Pair]:
    """One record is left out."""

    def showing(batch: Any) -> Pair:
        found = records_of(batch)
        del found[which]
        return batch, batch_of(batch, found)

    return showing


def holding(value: float, position: int = 0) -> Callable[[Any], Pair]:
    """One record has this value everywhere in one of its tensors."""

    def showing(batch: Any) -> Pair:
        found = records_of(batch)
        found[1] = with_value(found[1], position, value)
        return batch, batch_of(batch, found)

    return showing


def among(many: int) -> Callable[[Any], Pair]:
    """Of `many` records, the last is left out."""

    def showing(batch: Any) -> Pair:
        found = records_of(batch)
        crowd = [like(found) for _ in range(many)]
        return batch_of(batch, crowd), batch_of(batch, crowd[:-1])

    return showing


def pair(one: int, other: int) -> Callable[[Any], Pair]:
    """Of two records the second is left out."""

    def showing(batch: Any) -> Pair:
        found = records_of(batch)
        both = [found[one], found[other]]
        return batch_of(batch, both), batch_of(batch, both[:1])

    return showing


def only(batch: Any) -> Pair:
    """The only record is left out, and then there is no pass."""
    found = records_of(batch)[:1]
    return batch_of(batch, found), rows(batch, slice(0, 0))


# Batches and their records. A list is one of records that wait to be collated. ---------------


def records_of(batch: Any) -> list[Any]:
    """The records of a batch, each a batch of one."""
    if isinstance(batch, list):
        return list(batch)
    return [rows(batch, slice(i, i + 1)) for i in range(count(batch))]


def batch_of(form: Any, found: list[Any]) -> Any:
    """The batch of some records, in the form of another batch."""
    if isinstance(form, list):
        return found
    columns = [torch.cat(column) for column in zip(*map(tensors_in, found), strict=True)]
    place = numbers_from()
    return each(lambda _: columns[next(place)], form)


def like(found: list[Any], scale: float = 1.0) -> Any:
    """A new record: numbers from N(0, scale²), and integers and truths that others have."""
    some = found[int(torch.randint(len(found), ()))]
    place = numbers_from()

    def draw(own: Tensor) -> Tensor:
        position = next(place)
        if own.is_floating_point():
            return torch.randn(own.shape) * scale
        pool = torch.cat([list(tensors_in(record))[position].flatten() for record in found])
        return pool[torch.randint(len(pool), own.shape)]

    return each(draw, some)


def with_value(record: Any, position: int, value: float) -> Any:
    """The record with this value everywhere in one of its tensors."""
    place = numbers_from()
    return each(lambda own: torch.full_like(own, value) if next(place) == position else own, record)


def difference(one: Any, other: Any) -> int:
    """The place of the one record that was replaced, or left out of `other`."""
    first, second = records_of(one), records_of(other)
    if len(first) == len(second):
        places = [i for i, pair in enumerate(zip(first, second, strict=True)) if not same(*pair)]
        assert len(places) == 1, f"records {places} were replaced, and not one"
        return places[0]
    assert len(first) == len(second) + 1
    place = next((i for i, record in enumerate(second) if not same(first[i], record)), len(second))
    assert all(map(same, first[place + 1 :], second[place:])), "more than one record is missing"
    return place


def same(one: Any, other: Any) -> bool:
    """Whether two records are equal in everything; NaN equals itself."""
    return _texts(one) == _texts(other) and all(
        a.shape == b.shape and torch.allclose(a, b, 0, 0, equal_nan=True)
        for a, b in zip(tensors_in(one), tensors_in(other), strict=True)
    )


def _texts(record: Any) -> list[str]:
    return [part for part in record if isinstance(part, str)]
