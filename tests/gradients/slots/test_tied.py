"""Several uses of one weight against their gradients written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steppe.gradients.slots.embedding import EmbeddingRows
from steppe.gradients.slots.outer import Outer, Single
from steppe.gradients.slots.slot import NO_RECORDS, Materialised, Slot
from steppe.gradients.slots.tied import Tied, sum_of_uses

WORDS, WIDTH, B = 40, 12, 4


def lookup(positions: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> EmbeddingRows:
    g = scale * torch.randn(B * positions, WIDTH, dtype=dtype)
    owners = torch.arange(B).repeat_interleave(positions)
    return EmbeddingRows(g, torch.randint(WORDS, (B * positions,)), owners, B, (WORDS, WIDTH))


def product(positions: int, dtype: torch.dtype = torch.float64) -> Outer:
    x = torch.randn(B, positions, WIDTH, dtype=dtype)
    return Outer(x, torch.randn(B, positions, WORDS, dtype=dtype))


def assert_same(slot: Slot, truth: Tensor, tolerance: float) -> None:
    """All that a slot can say, against the gradients themselves."""
    norms = truth.square().sum((1, 2))
    torch.testing.assert_close(slot.squared_norms().double(), norms, rtol=tolerance, atol=0.0)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(slot.written_out().double(), truth, **close)
    weight = torch.randn(WORDS, WIDTH, dtype=slot.written_out().dtype)
    dots = (truth * weight.double()).sum((1, 2))
    torch.testing.assert_close(slot.dots(weight).double(), dots, **close)
    factors = torch.rand(B, dtype=weight.dtype)
    for bad in (NO_RECORDS, torch.tensor([1])):
        kept = factors.index_fill(0, bad, 0.0)
        out = torch.zeros(WORDS * WIDTH, dtype=weight.dtype)
        slot.add_(out, kept, bad)
        wanted = (truth * kept.double()[:, None, None]).sum(0).flatten()
        torch.testing.assert_close(out.double(), wanted, **close)


@settings(max_examples=30, deadline=None)
@given(
    products=st.lists(st.integers(1, 3), max_size=2),
    lookups=st.lists(st.integers(0, 9), max_size=3),
    seed=st.integers(0, 999),
)
def test_sum_of_uses(products: list[int], lookups: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    slots: list[Slot] = [*map(product, products), *map(lookup, lookups)]
    if len(slots) > 1:
        truth = torch.stack([slot.written_out() for slot in slots]).sum(0)
        assert_same(sum_of_uses(slots), truth, 1e-12)


def test_each_mixture_takes_its_way() -> None:
    assert type(sum_of_uses([lookup(3), lookup(2)])) is EmbeddingRows
    assert type(sum_of_uses([product(2), product(3)])) is Outer
    assert type(sum_of_uses([product(2), lookup(3)])) is Tied
    one = Single(torch.randn(B, WIDTH), torch.randn(B, WORDS))
    assert type(sum_of_uses([lookup(3), one])) is Tied
    assert type(sum_of_uses([product(30), lookup(3)])) is Materialised, (
        "so many positions are cheaper this way"
    )
    assert type(sum_of_uses([Materialised(product(2).written_out()), lookup(3)])) is Materialised


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    a, b = product(3, dtype), lookup(5, dtype)
    truth = a.written_out().double() + b.written_out().double()
    assert_same(sum_of_uses([a, b]), truth, 2e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_uses_that_cancel_never_give_a_norm_that_is_too_small(scale: float) -> None:
    torch.manual_seed(2)
    a = product(2, torch.float32)
    a.x.mul_(scale)
    rows = torch.arange(WORDS).repeat(B)
    opposite = -a.written_out().reshape(-1, WIDTH)
    opposite += 1e-4 * scale * torch.randn_like(opposite)
    b = EmbeddingRows(opposite, rows, torch.arange(B).repeat_interleave(WORDS), B, (WORDS, WIDTH))
    x, g = a.x.double(), a.g.double()
    exact = torch.bmm(g.mT, x) + b.written_out().double()
    truth = exact.square().sum((1, 2))
    found = Tied(a, b).squared_norms()
    assert bool((found >= truth * (1 - 1e-6)).all()), (found / truth).min()
    assert bool((found <= truth + 1e-5 * a.squared_norms()).all()), "no more than rounding"


@pytest.mark.parametrize("value", [1e30, float("inf"), float("nan")])
def test_only_the_record_that_overflows_has_a_norm_that_is_not_finite(value: float) -> None:
    """Its terms have opposite signs: minus infinity must not pass for a short gradient."""
    a, b = product(2, torch.float32), lookup(3, torch.float32)
    b.g[3:6] = -value
    a.x[1] = value
    a.g[1] = value
    finite = sum_of_uses([a, b]).squared_norms().isfinite()
    assert finite.tolist() == [True, False, True, True]


def test_records_without_a_lookup() -> None:
    """A bag may be empty, and so may all of them."""
    torch.manual_seed(3)
    some = lookup(4)
    for keep in (some.owners == 2, some.owners < 0):
        a, b = product(2), some.where(keep)
        assert_same(sum_of_uses([a, b]), a.written_out() + b.written_out(), 1e-12)
