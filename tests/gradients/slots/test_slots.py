"""Slots against float64 truth: precision is privacy here."""

import pytest
import torch

from steppe import Flat
from steppe.clipping.clip import NormClipper
from steppe.errors import UnsupportedModelError
from steppe.gradients.flat_weights import FlatWeights
from steppe.gradients.record_gradients import RecordGradients
from steppe.gradients.slots.outer import Outer, Single, Summed
from steppe.gradients.slots.slot import Materialised, Slot, squared_rows, wide, zero_rows

NO_RECORDS = torch.zeros(0, dtype=torch.long)


@pytest.mark.parametrize("length", [1, 7, 2048, 2049, 300_000, 2_400_001])
def test_squared_rows_are_accurate_for_long_rows(length: int) -> None:
    torch.manual_seed(length)
    rows = torch.randn(2, length) * torch.logspace(-2, 2, 2)[:, None]
    truth = rows.double().square().sum(1)
    assert torch.allclose(squared_rows(rows).double(), truth, rtol=2e-6)


@pytest.mark.parametrize("length", [1, 16, 17, 2049])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.5, 1e-4, 1e-9], ids=["few digits", "fewer", "none"])
def test_squares_that_underflow_never_make_a_norm_too_small(
    length: int, dtype: torch.dtype, share: float
) -> None:
    """The squares are subnormal, or zero."""
    rows = torch.full((3, length), share * torch.finfo(dtype).tiny ** 0.5, dtype=dtype)
    exact = float(rows[0, 0]) * length**0.5
    assert bool((squared_rows(rows).sqrt() / exact >= 1 - 1e-6).all())


@pytest.mark.parametrize("width", [3, 40, 3000])
def test_one_tiny_side_and_one_huge_say_no_more_than_the_bound(width: int) -> None:
    """Squares of 1e-25 are zero in float32; the product with 1e18 is not."""
    x, g = torch.full((1, width), 1e-25), torch.full((1, 2), 1e18)
    out, slot = torch.zeros(2 * width), Single(x, g)
    NormClipper(out.numel(), Flat(1e-9).factors).add_(out, captured(slot, 2, width))
    assert float(out.double().norm()) <= 1e-9 * (1 + 1e-6)


@pytest.mark.parametrize(("inputs", "outputs"), [(12, 3), (3, 12), (16, 16), (17, 3), (3, 17)])
@pytest.mark.parametrize("bound", [1.0, 1e-3, 1e-6])
def test_the_largest_numbers_say_no_more_than_the_bound(
    inputs: int, outputs: int, bound: float
) -> None:
    """One side near the largest number: the other, times its factor, must keep its digits."""
    torch.manual_seed(0)
    longest = 0.0
    for power in range(-12, 2):
        sides = torch.rand(1, inputs) * 3e38, torch.rand(1, outputs) * 10.0**power
        for x, g in (sides, (sides[0] * 1e-38 * 10.0**power, sides[1] * 10.0**-power * 3e38)):
            out, slot = torch.zeros(outputs * inputs), Single(x, g)
            NormClipper(out.numel(), Flat(bound).factors).add_(out, captured(slot, outputs, inputs))
            longest = max(longest, out.double().norm().item() / bound)
    assert longest <= 1 + 1e-6
    if max(inputs, outputs) <= 16:  # longer rows are left out: their squares leave float32
        assert longest >= 1 - 1e-6


def captured(slot: Slot, *shape: int) -> RecordGradients:
    weight = torch.zeros(shape)
    return RecordGradients([(weight, slot)], 1, 1.0, FlatWeights({"weight": weight}, 0.0))


@pytest.mark.parametrize("positions", [1, 2, 9, 32, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_outer_equals_the_gradient_written_out(positions: int, dtype: torch.dtype) -> None:
    torch.manual_seed(positions)
    x, g = torch.randn(4, positions, 5).to(dtype), torch.randn(4, positions, 3).to(dtype)
    weight = torch.randn(3, 5)
    truth = torch.einsum("btp,btd->bpd", g.double(), x.double())
    slot = Outer(x, g)
    guard = 1e-6 * positions  # in proportion to the squared norms of x and g
    norms = truth.square().sum((1, 2))
    assert torch.allclose(slot.squared_norms().double(), norms, rtol=1e-5 + guard)
    assert torch.allclose(slot.written_out().double(), truth, rtol=1e-5, atol=1e-5)
    out, factors = torch.zeros(15, dtype=slot.written_out().dtype), torch.rand(4)
    slot.add_(out, factors.to(out.dtype), NO_RECORDS)
    wanted = (truth * factors.double()[:, None, None]).sum(0).flatten()
    assert torch.allclose(out.double(), wanted, rtol=1e-4, atol=1e-5)
    dots = slot.dots(weight.to(dtype)).double()
    assert torch.allclose(
        dots, (truth * weight.to(dtype).double()).sum((1, 2)), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("width", [64, 1024, 8192])
def test_cancelling_terms_never_give_a_norm_that_is_too_small(scale: float, width: int) -> None:
    """Positions whose gradients cancel: the Gram norm loses all digits, the guard must cover it."""
    torch.manual_seed(int(scale))
    x = torch.randn(8, 1, width) * scale
    g = torch.randn(8, 1, 32)
    small = 1e-4 * torch.randn(8, 1, width)
    rows, grads = torch.cat([x, x + small, x], 1), torch.cat([g, -g, 1e-5 * g], 1)
    truth = torch.einsum("btp,btd->bpd", grads.double(), rows.double()).square().sum((1, 2))
    found = Outer(rows, grads).squared_norms().double()
    assert (found >= truth * (1 - 1e-6)).all(), (found / truth).min()


@pytest.mark.parametrize(("positions", "inputs", "outputs"), [(1, 3072, 1000), (64, 192, 384)])
@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_no_pull_makes_a_norm_too_small(
    positions: int, inputs: int, outputs: int, written_out: bool, sign: float
) -> None:
    """θ is all but g/λ or −g/λ, and ⟨g, θ⟩ a sum of millions of numbers of one sign."""
    torch.manual_seed(positions)
    for power in (-3.0, -3.5, -4.0, -4.5, -5.0):
        x, g = torch.randn(1, positions, inputs), torch.randn(1, positions, outputs)
        slot = Outer(x, g) if positions > 1 else Single(x[:, 0], g[:, 0])
        gradient = slot.written_out()
        left = 10.0**power * torch.randn_like(gradient)
        weight = torch.nn.Parameter((sign * gradient * (1 + left))[0])
        truth = torch.bmm(g.double().mT, x.double()).add_(weight.detach()).square().sum()
        kept = Materialised(gradient) if written_out else slot
        found = RecordGradients([(weight, kept)], 1, 1.0, FlatWeights({"weight": weight}, 1.0))
        assert found.squared_norms().item() >= truth.item() * (1 - 1e-6), power


@pytest.mark.parametrize("changed", ["x", "g"])
def test_norms_taken_early_are_taken_again_where_a_tensor_was_changed(changed: str) -> None:
    x, g = torch.randn(3, 4, 5), torch.randn(3, 4, 2)
    slot = Outer(x, g).measured()
    before = Outer(x, g).squared_norms()
    assert torch.equal(slot.squared_norms(), before)
    {"x": x, "g": g}[changed].detach().mul_(3.0)
    assert torch.allclose(slot.squared_norms(), 9.0 * before, rtol=1e-5)


@pytest.mark.parametrize("features", [5, 8])
def test_a_record_whose_squares_leave_float32_has_no_short_norm(features: int) -> None:
    """The compiled kernel calls it infinite; in float64 it is just long."""
    x, g = torch.ones(3, 40, features), torch.ones(3, 40, features)
    x[1] = 1e25
    norms = Outer(x, g).squared_norms()
    truth = (40.0 * features) ** 2
    assert norms[1] >= truth * 1e50 * (1 - 1e-6)
    assert norms[::2].tolist() == pytest.approx([truth, truth], rel=1e-4)
    long_ones = torch.full((3, 40, features), 1e38)
    assert not Outer(long_ones, long_ones * 1e-30).squared_norms().lt(1e90).any()


def test_guard_costs_less_than_the_promised_precision_on_ordinary_gradients() -> None:
    torch.manual_seed(0)
    x, g = torch.randn(16, 20, 200), torch.randn(16, 20, 100)
    truth = torch.einsum("btp,btd->bpd", g.double(), x.double()).square().sum((1, 2)).sqrt()
    assert torch.allclose(Outer(x, g).squared_norms().double().sqrt(), truth, rtol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 3), (3, 5)])
def test_single_says_what_outer_says_of_one_position(inputs: int, outputs: int) -> None:
    x, g, factors = torch.randn(4, inputs), torch.randn(4, outputs), torch.rand(4)
    bad, weight = torch.tensor([2]), torch.randn(outputs, inputs)
    one, general = Single(x, g), Outer(x.unsqueeze(1), g.unsqueeze(1))
    assert torch.allclose(one.squared_norms(), general.squared_norms().double(), rtol=1e-5)
    assert torch.allclose(one.written_out(), general.written_out())
    assert torch.allclose(one.dots(weight), general.dots(weight), atol=1e-5)
    found, expected = torch.zeros(2, inputs * outputs)
    one.add_(found, factors, bad)
    general.add_(expected, factors, bad)
    assert torch.allclose(found, expected, atol=1e-6)


def test_summed_is_the_gradient_of_a_bias() -> None:
    g = torch.randn(3, 4, 2)
    slot = Summed(g)
    out = torch.zeros(2)
    slot.add_(out, torch.ones(3), NO_RECORDS)
    assert torch.allclose(out, g.sum((0, 1)), rtol=1e-5, atol=1e-6)
    assert torch.allclose(slot.squared_norms().float(), g.sum(1).square().sum(1), rtol=1e-5)


def test_bad_records_are_left_out_even_where_they_are_not_finite() -> None:
    gradients = torch.ones(3, 2)
    gradients[1] = float("nan")
    out = torch.zeros(2)
    Materialised(gradients).add_(out, torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1]))
    assert torch.equal(out, torch.full((2,), 2.0))
    assert zero_rows(gradients, NO_RECORDS) is gradients


@pytest.mark.parametrize("positions", [1, 4, 40])
def test_tiny_inputs_with_huge_gradients_do_not_underflow(positions: int) -> None:
    """Squares of 1e-23 are zero in float32; the product with 1e19 is not."""
    x, g = torch.full((2, positions, 784), 2.6e-23), torch.full((2, positions, 1), 1.8e18)
    truth = torch.einsum("btp,btd->bpd", g.double(), x.double()).square().sum((1, 2))
    assert (Outer(x, g).squared_norms().double() >= truth).all()


def test_a_weight_without_axes_has_a_slot() -> None:
    slot, out = Materialised(torch.tensor([1.0, 2.0, 3.0])), torch.zeros(1)
    slot.add_(out, torch.tensor([1.0, 0.5, 2.0]), NO_RECORDS)
    assert out.tolist() == [8.0]
    assert slot.dots(torch.tensor(2.0)).tolist() == [2.0, 4.0, 6.0]


def test_complex_gradients_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"gradient=torch.complex64: must be of real"):
        wide(torch.zeros(2, dtype=torch.complex64))
