"""Sums over records, and where the tensors of a batch went: what is noted beside owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.isolation import FREE, MIXED, OWNED, RANDOM, tensors_among

LEAF = "_steppe_leaf"
TOTAL = "_steppe_total"
KEPT = "_steppe_kept"
FOLLOW = "_steppe_follow"
ROUTE = "_steppe_route"
ALL = (OWNED, RANDOM, LEAF, TOTAL, KEPT, FOLLOW, ROUTE)

Path = tuple[Any, ...]
Guard = tuple[Path, int]
"""A tensor of the batch, and a label that must not be in it."""


@dataclass(frozen=True)
class Total:
    """A sum over all records, each with the same weight.

    Attributes:
        scales: what each of the sums that were added up is multiplied by.
        guards: labels that must not occur for this to hold.
    """

    scales: tuple[float, ...]
    guards: frozenset[Guard] = frozenset()

    def times(self, factor: float) -> Total:
        """Scaled by a constant."""
        return Total(tuple(scale * factor for scale in self.scales), self.guards)

    def plus(self, other: Total) -> Total:
        """Added up."""
        return Total((*self.scales, *other.scales), self.guards | other.guards)


def has_mixed(owners: Tensor) -> bool:
    """Whether any element is made from several records."""
    return bool((owners == MIXED).any())


def all_alike(owners: Tensor, records: int) -> bool:
    """Whether all records have as many elements."""
    whose = owners.flatten()
    counts = torch.bincount(whose[whose != FREE].long(), minlength=records)
    return len(counts) == records and bool((counts == counts[0]).all())


def is_arange(tensor: Tensor) -> bool:
    """Places in the batch, which pick each record's own entry."""
    if tensor.dtype != torch.int64 or tensor.numel() != max(tensor.shape, default=0):
        return False
    places = torch.arange(tensor.numel(), device=tensor.device)
    return bool((tensor.flatten() == places).all())


def leaf_of(name: str, given: dict[str, Any]) -> Path | None:
    if name not in MOVED:
        return None
    tensors = [t for t in tensors_among(given.values()) if hasattr(t, OWNED)]
    paths = {getattr(tensor, LEAF, None) for tensor in tensors}
    return paths.pop() if len(paths) == 1 else None


def kept_of(name: str, given: dict[str, Any]) -> tuple[Any, ...] | None:
    """Follow `labels != ignore_index` and the number of those."""
    tensor = given.get("self")
    known = getattr(tensor, KEPT, None)
    if name in ("eq", "ne"):
        leaf, number = getattr(tensor, LEAF, None), given.get("other")
        if leaf is None or not isinstance(number, (int, float)):
            return None
        return ("kept" if name == "ne" else "left out", (leaf, int(number)))
    if known is None or tensor is None:
        return None
    if name in ("bitwise_not", "logical_not"):
        return ("left out" if known[0] == "kept" else "kept", known[1])
    if name == "sum" and known[0] == "kept" and given.get("dim") in (None, []):
        return ("count", known[1], tensor.numel())
    return known if name in MOVED else None


MOVED = frozenset(
    (
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "unsqueeze",
        "squeeze",
        "expand",
        "alias",
        "detach",
        "clone",
        "_to_copy",
        "t",
        "permute",
        "transpose",
        "select",
        "slice",
        "narrow",
        "split",
        "unbind",
        "lift_fresh",
        "positive",
        "contiguous",
        "cat",
        "constant_pad_nd",
    )
)
