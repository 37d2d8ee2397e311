"""Honest user code with random numbers, and with writes that are the same for every record."""

from __future__ import annotations

from collections.abc import Callable

import torch
from isolation_case import Honest
from isolation_networks import along, sequences, using
from torch import Tensor


def depth(h: Tensor) -> Tensor:
    """Stochastic depth: each record drops the block or not."""
    return h + h.tanh() * (torch.rand(len(h), 1, 1) < 0.8) / 0.8


def depth_in_place(h: Tensor) -> Tensor:
    """The same as timm draws it."""
    return h * h.new_empty(len(h), 1, 1).bernoulli_(0.8).div_(0.8)


def times(h: Tensor) -> Tensor:
    """Diffusion: a time for each record."""
    kept = torch.linspace(1, 0, 1000)[torch.randint(0, 1000, (len(h),))].view(-1, 1, 1)
    return kept * h + (1 - kept) * torch.randn(h.shape)


def shared_crop(h: Tensor) -> Tensor:
    """One window for the whole batch."""
    start = int(torch.randint(0, 3, ()))
    return h[:, start : start + 3]


def two_copies(h: Tensor) -> Tensor:
    """Two noisy copies, one after another."""
    both = torch.cat([h, h])
    one, other = (both + torch.randn(both.shape)).chunk(2)
    return one * other


def two_beside(h: Tensor) -> Tensor:
    """Two noisy copies beside each other."""
    both = h.repeat_interleave(2, 0)
    return (both + torch.randn(both.shape)).view(len(h), -1, h.shape[-1])


def masked_patches(h: Tensor) -> Tensor:
    """MAE: random places of each record stay."""
    kept = torch.rand(h.shape[:2]).argsort(1)[:, :3]
    return h.gather(1, kept[..., None].expand(-1, -1, h.shape[2]))


def masked(h: Tensor) -> Tensor:
    """Random places are written over."""
    h = h.clone()
    h[torch.rand(h.shape[:2]) < 0.3] = 0
    return h


def drawn_places(h: Tensor) -> Tensor:
    """Places drawn for each record without replacement."""
    kept = torch.multinomial(torch.ones(h.shape[:2]), 2)
    return h.gather(1, kept[..., None].expand(-1, -1, h.shape[2]))


def step_by_step(h: Tensor) -> Tensor:
    """Time first, written step by step, with a constant in the first."""
    out = torch.empty(h.shape[1], len(h), h.shape[2], dtype=h.dtype)
    for t, step in enumerate(h.unbind(1)):
        out[t] = step * 2
    out[0] = 1
    return out.transpose(0, 1)


def shifted(h: Tensor) -> Tensor:
    """One step to the right."""
    out = torch.zeros_like(h)
    out[:, 1:] = h[:, :-1]
    out[:, 0] = 1
    return out


def features_written(h: Tensor) -> Tensor:
    """Features and steps by number, the same in all records."""
    one = torch.tensor([1])
    h = h.index_fill(2, one, 0.0).index_add(1, one, h.new_ones(len(h), 1, h.shape[2]))
    return h.index_copy(2, one + 1, h.new_zeros(*h.shape[:2], 1)).tril()


def last_step(h: Tensor) -> Tensor:
    """A step picked by the numbers of records, with time first."""
    rows = torch.arange(len(h))
    return h.transpose(0, 1)[torch.full_like(rows, 4), rows].unsqueeze(1)


def seeded_and_put_back(h: Tensor) -> Tensor:
    """The same numbers for all records in every pass, and the generator goes on as it would."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        turn = torch.randn(6)
    return h * turn * torch.rand_like(h)


def fixed_turn(h: Tensor) -> Tensor:
    """A turn of the features that is the same in every pass."""
    turn = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    return h @ turn.to(h)


def array_of_a_constant(h: Tensor) -> Tensor:
    """NumPy computes with what is no record's."""
    return h * torch.from_numpy(torch.arange(6.0).numpy() + 1).to(h)


def _case(name: str, change: Callable[[Tensor], Tensor]) -> Honest:
    return Honest(name, "forward", using(along(change), sequences))


CASES = (
    _case("random depth", depth),
    _case("random depth in place", depth_in_place),
    _case("random times", times),
    _case("one window for all", shared_crop),
    _case("two noisy copies", two_copies),
    _case("two noisy copies beside", two_beside),
    _case("random places stay", masked_patches),
    _case("random places written", masked),
    _case("places drawn", drawn_places),
    _case("steps in one random order", lambda h: h[:, torch.randperm(h.shape[1])].cumsum(1)),
    _case("three numbers for all", lambda h: h * torch.rand(3).softmax(0).amax()),
    _case("kept by a constant", lambda h: h * torch.bernoulli(torch.full((len(h), 1, 1), 0.8))),
    _case("step by step", step_by_step),
    _case("one step to the right", shifted),
    _case("features written", features_written),
    _case("last step by number", last_step),
    _case("seeded and put back", seeded_and_put_back),
    _case("fixed turn", fixed_turn),
    _case("array of a constant", array_of_a_constant),
)
