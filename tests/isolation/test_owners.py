"""Owners joined, moved and looked at in other shapes, against doing it element by element."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steppe.isolation.owners import (
    FREE,
    MIXED,
    TYPE,
    join,
    joined,
    joined_over,
    narrowed,
    on_axis,
    squeezed,
    viewed,
)

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**20)


def some(shape: tuple[int, ...], seed: int, least: int = FREE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(least, 3, shape, generator=generator, dtype=TYPE)
    return torch.where(torch.rand(shape, generator=generator) < 0.1, MIXED, found)


def together(owners: list[int]) -> int:
    """What is made from these elements is whose?"""
    records = {owner for owner in owners if owner != FREE}
    if not records:
        return FREE
    return records.pop() if len(records) == 1 else MIXED


@settings(deadline=None, max_examples=60)
@given(SHAPES, SEEDS, st.integers(1, 4))
def test_join(shape: tuple[int, ...], seed: int, many: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [
        some(tuple(1 if torch.rand((), generator=generator) < 0.4 else s for s in shape), seed + i)
        for i in range(many)
    ]
    made = join(parts).expand(shape)
    for place in itertools.product(*map(range, shape)):
        assert made[place] == together([int(part.expand(shape)[place]) for part in parts])


@settings(deadline=None, max_examples=60)
@given(SHAPES, SEEDS)
def test_joined_over(shape: tuple[int, ...], seed: int) -> None:
    owners = some(shape, seed)
    axes = [axis for axis in range(len(shape)) if (seed >> axis) & 1]
    made = joined_over(owners, axes)
    for place in itertools.product(*(range(1 if i in axes else s) for i, s in enumerate(shape))):
        part = owners
        for axis in range(len(shape)):
            if axis not in axes:
                part = part.narrow(axis, place[axis], 1)
        assert made[place] == together(part.flatten().tolist())
    assert joined(owners) == together(owners.flatten().tolist())


@settings(deadline=None, max_examples=150)
@given(SHAPES, SEEDS)
def test_viewed(old: tuple[int, ...], seed: int) -> None:
    """Whatever the owners are stored once for, and whatever the new shape is."""
    generator = torch.Generator().manual_seed(seed)
    stored = tuple(1 if torch.rand((), generator=generator) < 0.5 else size for size in old)
    owners = some(stored, seed)
    left, new = torch.Size(old).numel(), []
    while left > 1:
        divisors = [d for d in range(1, left + 1) if left % d == 0]
        new.append(divisors[int(torch.randint(len(divisors), (), generator=generator))])
        left //= new[-1]
    shape = tuple(new) + (1,) * (seed % 2)
    made = viewed(owners, old, shape)
    assert made.ndim == len(shape)
    assert torch.equal(made.expand(shape), owners.expand(old).reshape(shape))


def test_viewed_without_elements() -> None:
    assert (viewed(on_axis(2, 0, 3), (3, 0), (0, 3)) == FREE).all()


@settings(deadline=None, max_examples=60)
@given(SHAPES, SEEDS)
def test_squeezed_and_narrowed_say_the_same(shape: tuple[int, ...], seed: int) -> None:
    stored = tuple(1 if (seed >> i) & 1 else size for i, size in enumerate(shape))
    owners = some(stored, seed).expand(shape)
    for made in (squeezed(owners), narrowed(owners)):
        assert torch.equal(made.expand(shape), owners)
    for axis, size in enumerate(squeezed(owners).shape):
        alike = bool((owners == owners.narrow(axis, 0, 1)).all())
        assert (size == 1) == (alike or shape[axis] == 1)
