"""User code that shares memory with what torch does not see, or seeds random numbers in a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from isolation_case import Mixing, without
from isolation_networks import between, using
from torch import Tensor
from torch.nn import functional as F


def array_of_a_buffer(h: Tensor) -> Tensor:
    """An array looks at a tensor before records are written to it."""
    kept = torch.zeros_like(h, requires_grad=False)
    array = kept.numpy()
    kept.copy_(h.detach())
    return h - torch.from_numpy(array).mean(0)


def number_of_a_buffer(h: Tensor) -> Tensor:
    """Python reads the array."""
    kept = torch.zeros_like(h[0])
    array = kept.numpy()
    kept.copy_(h.detach()[1])
    return h * float(1 + array.sum())


def two_of_one_buffer(h: Tensor) -> Tensor:
    """Two tensors over one memory, of which torch does not know."""
    kept = torch.zeros_like(h)
    other = torch.from_dlpack(kept)
    kept.copy_(h.detach())
    return h - other.mean(0)


def exchanged_before(h: Tensor) -> Tensor:
    """A constant looks at the memory of another one, and then records are written there."""
    kept, other = torch.zeros_like(h), torch.zeros_like(h)
    other.data = kept
    kept.copy_(h.detach())
    return h - other.mean(0)


def same_noise_by_place(h: Tensor) -> Tensor:
    """Noise that is to be the same in every run, and is so in every batch."""
    noise = torch.randn(h.shape, generator=torch.Generator().manual_seed(3))
    return h + noise


def same_mask_by_place(h: Tensor) -> Tensor:
    """The same by the global generator."""
    torch.manual_seed(0)
    return F.dropout(h, 0.5, training=True)


def noise_by_number(h: Tensor) -> Tensor:
    """One noise for all, which the number of records seeds."""
    torch.manual_seed(len(h))
    return h + torch.randn(6)


def _case(name: str, change: Callable[[Tensor], Tensor], says: str, **options: Any) -> Mixing:
    return Mixing(name, "forward", using(between(change)), says=says, **options)


CASES = (
    _case("array of a buffer", array_of_a_buffer, "must stay in tensors"),
    _case("number of a buffer", number_of_a_buffer, "must stay in tensors"),
    _case("two tensors of one buffer", two_of_one_buffer, "must stay in tensors"),
    _case("exchanged before a write", exchanged_before, "exchanged"),
    _case("noise by place", same_noise_by_place, "seeded in every pass", showing=without(0)),
    _case("mask by place", same_mask_by_place, "seeded in every pass", showing=without(0)),
    _case("noise by number", noise_by_number, "seeded in every pass", showing=without(0)),
)
