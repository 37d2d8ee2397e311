"""The bound follows the quantile it should, by released numbers alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import steppe
from steppe.clipping import Quantile
from steppe.clipping.quantile import QuantileClipper


def following(**constants: float) -> QuantileClipper:
    return Quantile(**constants).begin({"w": nn.Parameter(torch.zeros(2))})


def gradients(*norms: float) -> torch.Tensor:
    return torch.tensor([[norm, 0.0] for norm in norms], dtype=torch.float64)


def test_the_released_vector_by_hand() -> None:
    clipper = following(start=2.0, count_share=0.2)
    part = clipper.encode(gradients(1.0, 2.0, 4.0))
    half = math.sqrt(0.2 / 0.8)
    assert part.tolist() == [[0.5, 0.0, half], [1.0, 0.0, half], [1.0, 0.0, -half]]
    assert math.hypot(1.0, half) == pytest.approx(Quantile(count_share=0.2).sensitivity)


def test_the_bound_moves_by_the_share_below_it() -> None:
    clipper = following(start=2.0, target=0.25, learning_rate=0.3)
    mean = clipper.encode(gradients(1.0, 1.5, 1.9, 4.0)).sum(0) / 4
    gradient = clipper.decode(mean.clone())
    assert gradient.tolist() == pytest.approx([(1.0 + 1.5 + 1.9 + 2.0) / 4, 0.0])
    assert clipper.bound == pytest.approx(2.0 * math.exp(-0.3 * (0.75 - 0.25)))


def test_the_expected_batch_divides_and_nobody_is_half() -> None:
    """With fewer records than expected the missing ones count as one half each."""
    clipper = following(start=2.0, target=0.5, learning_rate=1.0)
    clipper.decode(clipper.encode(gradients(1.0)).sum(0) / 10)
    assert clipper.bound == pytest.approx(2.0 * math.exp(-0.05))
    clipper.decode(torch.zeros(3))  # an empty batch without noise
    assert clipper.bound == pytest.approx(2.0 * math.exp(-0.05))


def test_the_bound_finds_the_quantile_and_stays_in_its_range() -> None:
    torch.manual_seed(0)
    norms = torch.rand(400).double() * 3
    for target in (0.2, 0.5, 0.8):
        clipper = following(start=0.1, target=target)
        for _ in range(200):
            clipper.decode(clipper.encode(torch.stack([norms, 0 * norms], 1)).sum(0) / 400)
        assert clipper.bound == pytest.approx(float(norms.quantile(target)), rel=0.03)
    clipper = following(start=0.5, low=0.4, high=0.6)
    for answer, end in ((1e9, 0.4), (-1e9, 0.6)):
        clipper.decode(torch.tensor([0.0, 0.0, answer]))
        assert clipper.bound == end


def test_budget_of_count_and_gradients_adds_up() -> None:
    """1/σ² is split: gradients get (1 − s)/σ², the count at sensitivity ½ gets s/σ²."""
    sigma, share = 2.5, 1e-3
    clip = Quantile(count_share=share)
    std = sigma * clip.sensitivity
    on_gradients, on_count = std, std / clip.count_weight
    assert on_gradients == pytest.approx(sigma / math.sqrt(1 - share))
    assert on_count == pytest.approx(sigma / (2 * math.sqrt(share))) == pytest.approx(39.53, 1e-3)
    assert on_gradients**-2 + (2 * on_count) ** -2 == pytest.approx(sigma**-2)
    # Andrew et al.: z_Δ = (z⁻² − (2 s_b)⁻²)^(−1/2) with s_b a twentieth of the batch.
    share = Quantile.share_for(sigma, 2048 / 20)
    expected = (sigma**-2 - (2 * 2048 / 20) ** -2) ** -0.5
    assert sigma * Quantile(count_share=share).sensitivity == pytest.approx(expected)


def test_under_real_noise_and_sampling_the_bound_comes_close_to_the_quantile() -> None:
    """Standing weights, so that the norms stay; 60 steps with the count's noise at 13 of 200."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    x = torch.randn(400, 3)
    data = (x, torch.ones(400, 1))
    norms = 2 * x.double().norm(dim=1)  # of ∇(wx − 1)² at w = 0
    plan = steppe.Plan(
        delta=1e-4,
        noise_multiplier=1.5,
        population=400,
        batch_size=200,
        steps=60,
        clip=Quantile(target=0.7, start=0.3, count_share=3e-3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    loss = nn.functional.mse_loss
    private = steppe.make_private(
        model, optimizer, data, plan, loss=loss, source=steppe.SeededSource(1)
    )
    for batch in private:
        private.step(batch)
    bound = private.state_dict()["clip"]["bound"]
    assert float((norms <= bound).double().mean()) == pytest.approx(0.7, abs=0.1)


def test_sam_moves_the_bound_after_each_of_its_answers() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = (torch.randn(20, 3), torch.randint(2, (20,)))
    bounds = []
    for point in (steppe.Here(), steppe.SAM(0.01)):
        plan = steppe.Plan(
            delta=1e-3,
            noise_multiplier=1.0,
            population=20,
            batch_size=20,
            steps=1,
            point=point,
            clip=Quantile(start=1e-3, low=1e-4),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loss = nn.functional.cross_entropy
        private = steppe.make_private(
            model, optimizer, data, plan, loss=loss, source=steppe.SeededSource(0)
        )
        moves = []
        decode = private.engine.clipper.decode

        def counted(answer, decode=decode, moves=moves):  # type: ignore[no-untyped-def]
            moves.append(1)
            return decode(answer)

        private.engine.clipper.decode = counted  # type: ignore[method-assign]
        for batch in private:
            private.step(batch)
        bounds.append(private.state_dict()["clip"]["bound"])
        assert len(moves) == point.queries
    assert bounds[0] != bounds[1]


def test_a_state_of_another_clip_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clip state's bound=7.0: must lie between low=0.1 and"):
        following(start=0.5, low=0.1, high=1.0).load({"bound": 7.0})
    with pytest.raises(ValueError, match=r"clip state's bound=nan: must not be NaN"):
        following().load({"bound": math.nan})
