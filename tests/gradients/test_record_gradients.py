"""Norms and factors at the ends of float32: a record never says more than the clip allows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from steppe.clipping import GEP, Automatic, Clip, ClippedSum, Flat, PerLayer, Quantile
from steppe.gradients.flat_weights import FlatWeights
from steppe.gradients.record_gradients import RecordGradients, _usable, representable
from steppe.gradients.slots.slot import Materialised

CLIPS: list[Clip] = [Flat(1.0), Quantile(), Automatic(1.0, gamma=0.0), PerLayer(1.0)]


def longest_part(clip: Clip, l2: float, outward: float) -> float:
    """Over hostile records, the length of a record's part in units of the sensitivity."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, outward)

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]).square() / 2

    public = (torch.eye(4), torch.ones(4)) if isinstance(clip, GEP) else None
    engine = ClippedSum(
        dict(model.named_parameters()), objective, clip, l2=l2, public=public, physical_batch=16
    )
    longest = 0.0
    for exponent in range(30, 39):
        inputs = torch.full((1, 4), 10.0 ** (exponent / 2))
        for slope in (1e17, 1.7e19, -1e17, -1.7e19):
            out = torch.zeros(engine.width)
            engine.prepare()
            engine.add_(out, (inputs, model(inputs)[:, 0].detach() - slope))
            assert torch.isfinite(out).all()
            longest = max(longest, float(out.double().norm()) / clip.sensitivity)
    return longest


@pytest.mark.parametrize("clip", [*CLIPS, GEP(bases=2, groups=1)], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("outward", [1.0, -20.0])
def test_an_inner_product_beyond_float32_does_not_make_a_gradient_short(
    clip: Clip, outward: float
) -> None:
    # ⟨g, θ⟩ overflows to minus infinity although ‖g‖ does not: the sum of the terms of
    # ‖g + λθ‖² was then cut off at zero, and the record added some 1,400 times its bound.
    assert longest_part(clip, 1e-4, outward) <= 1 + 1e-6


@pytest.mark.parametrize("clip", [Flat(1e-6), Automatic(1e-6, gamma=0.0), PerLayer(1e-6)])
def test_a_factor_too_small_for_float32_is_zero_and_not_rounded_up(clip: Clip) -> None:
    assert longest_part(clip, 0.0, 1.0) <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_keep_their_digits_or_are_zero(dtype: torch.dtype) -> None:
    exact = torch.tensor([1.0, 1e-37, 1.2e-38, 1e-38, 1e-44, 0.0, math.nan], dtype=torch.float64)
    usable, bad = _usable(exact, dtype)
    for found in (representable(exact, dtype), usable):
        assert found.dtype == dtype
        torch.testing.assert_close(found[:3].double(), exact[:3], rtol=1e-7, atol=0.0)
        assert not found[3:].any()
    assert bad.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
def test_no_records_are_a_batch_like_any_other(clip: Clip) -> None:
    model = nn.Linear(4, 3)
    engine = ClippedSum(dict(model.named_parameters()), model, clip, l2=0.1)
    out = torch.zeros(engine.width)
    assert engine.add_slots_(out, [], records=0, scale=0.0).shape == (0,)
    assert not out.any()


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
def test_gradients_that_were_added_are_let_go(clip: Clip) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    engine = ClippedSum(dict(model.named_parameters()), lambda x: model(x).sum(1), clip)
    found = engine.slots(torch.randn(5, 4))
    assert len(found) == 4
    with torch.no_grad():
        engine.add_slots_(torch.zeros(engine.width), found, records=5)
    assert not found


def test_pieces_of_a_flat_gradient_may_be_changed_in_place() -> None:
    """As an optimizer of one's own does that forgets torch.no_grad()."""
    weights = {"a": nn.Parameter(torch.ones(2, 2)), "b": nn.Parameter(torch.ones(3))}
    flat = torch.zeros(7)
    for weight, piece in FlatWeights(weights, 0.0).split(flat):
        piece += 0.1 * weight
    assert flat.tolist() == pytest.approx([0.1] * 7)


def test_repeated_tokens_whose_gradients_cancel_do_not_shorten_the_norm() -> None:
    # ⟨g, θ⟩ must carry the rounding of the sum that is clipped, not that of its huge terms.
    torch.manual_seed(0)
    table = nn.Embedding(5, 8)
    engine = ClippedSum(
        dict(table.named_parameters()),
        lambda batch: (table(batch[0]) * batch[1]).sum((1, 2)),
        Flat(0.01),
        l2=0.5,
    )
    up = 1e7 * torch.randn(100, 1, 8)
    slopes = torch.cat([up, torch.randn(100, 1, 8) - up], dim=1)
    for slope in slopes:
        out = torch.zeros(engine.width)
        engine.add_(out, (torch.tensor([[1, 1]]), slope[None]))
        assert float(out.double().norm()) <= 0.01 * (1 + 1e-6)


@pytest.mark.parametrize("clip", [*CLIPS, GEP(bases=4, groups=2)], ids=lambda c: type(c).__name__)
def test_mixed_precision_around_a_step_does_not_reach_the_clip(clip: Clip) -> None:
    # In bfloat16 ⟨g, θ⟩ is off by some 0.4 %, and the norm of g + λθ with it.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        outputs = model(batch[0]).float().mean(1)
        return nn.functional.cross_entropy(outputs, batch[1], reduction="none")

    labels = torch.tensor([1])
    public = (torch.randn(8, 5, 6), labels.expand(8)) if isinstance(clip, GEP) else None
    engine = ClippedSum(
        dict(model.named_parameters()), objective, clip, l2=0.3, public=public, physical_batch=16
    )
    for _ in range(20):
        out = torch.zeros(engine.width)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            engine.prepare()
            engine.add_(out, (3 * torch.randn(1, 5, 6), labels))
            assert engine.decode(out.clone()).dtype == torch.float32
        assert float(out.double().norm()) <= clip.sensitivity * (1 + 1e-6)


class Widened(nn.Module):
    """Back to float32, as normalisation and softmax do under autocast."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.float()


def test_mixed_precision_inside_the_model_does_not_reach_the_inner_products() -> None:
    # Inputs in float32, their gradient in bfloat16: ⟨g, θ⟩ must not be made from the two.
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 64), Widened(), nn.Linear(64, 64), Widened(), nn.Linear(64, 1), Widened()
    )

    def objective(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch)[:, 0]

    engine = ClippedSum(dict(model.named_parameters()), objective, Flat(0.01), l2=0.3)
    for _ in range(100):
        out = torch.zeros(engine.width)
        engine.add_(out, 2 * torch.randn(1, 6))
        assert float(out.double().norm()) <= 0.01 * (1 + 1e-6)


def test_weights_of_two_precisions_are_scaled_alike() -> None:
    """After a mean over three records a captured gradient is a third of the record's own."""
    torch.manual_seed(0)
    weights = {"narrow": torch.zeros(4), "wide": torch.zeros(4, dtype=torch.float64)}
    found = [(w, Materialised(torch.randn(3, 4).to(w.dtype))) for w in weights.values()]
    factors = torch.tensor([0.5, 1.0, 0.25])
    wanted = torch.cat([3 * factors @ slot.gradients.float() for _, slot in found])
    out = torch.zeros(8)
    RecordGradients(found, 3, 3.0, FlatWeights(weights, 0.0)).add_(out, factors)
    torch.testing.assert_close(out, wanted)
