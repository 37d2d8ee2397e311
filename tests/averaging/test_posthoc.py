"""Averages that were not kept, against the same averages kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from steppe.averaging import (
    EMA,
    Averages,
    CheckpointStore,
    PolynomialDecay,
    PowerAverages,
    reconstruct,
    stored_snapshots,
)
from steppe.averaging.posthoc import GAMMAS, Snapshot, fit
from steppe.averaging.profiles import ema_profile, power_profile
from steppe.errors import ConfigurationError


def snapshots_at(steps: range, gammas: tuple[float, ...] = GAMMAS) -> list[Snapshot]:
    return [Snapshot(step, gamma, dict) for gamma in gammas for step in steps]


@given(gamma=st.floats(0, 60), steps=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_the_power_profile_is_the_recursion_unrolled(gamma: float, steps: int) -> None:
    weights = np.zeros(steps)
    for t in range(1, steps + 1):
        share = (gamma + 1) / (t + gamma)
        weights *= 1 - share
        weights[t - 1] += share
    np.testing.assert_allclose(power_profile(gamma, steps), weights, rtol=1e-9, atol=1e-300)


def test_inner_products_tend_to_those_of_power_functions() -> None:
    # ∫₀^m of the two densities: (γ+1)(γ'+1)/(γ+γ'+1) · m^(γ+γ'+1) / (T^(γ+1) T'^(γ'+1))
    for gamma, other, end, earlier in ((2.0, 17.0, 8000, 8000), (2.0, 2.0, 8000, 4000)):
        inner = float(power_profile(gamma, end)[:earlier] @ power_profile(other, earlier))
        limit = (gamma + 1) * (other + 1) / (gamma + other + 1) / earlier
        assert inner == pytest.approx(limit * (earlier / end) ** (gamma + 1), rel=0.01)


def test_the_fit_finds_what_is_in_the_span_and_sums_to_one() -> None:
    snapshots = snapshots_at(range(50, 501, 50))
    coefficients, residual = fit(snapshots, power_profile(17.0, 450), 500)
    assert residual < 1e-10
    assert np.flatnonzero(np.abs(coefficients) > 1e-8).tolist() == [18]
    poor, _ = fit(snapshots[:2], ema_profile(0.5, 500), 500)
    assert poor.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("gamma", "decay", "bound"),
    [(1.0, None, 0.02), (6.0, None, 0.02), (30.0, None, 0.05), (None, 0.99, 0.02)],
)
def test_reconstructions_match_the_true_averages(
    gamma: float | None, decay: float | None, bound: float, tmp_path: Path
) -> None:
    """Noise around a fixed point, as at the end of training; the error itself is measured."""
    model = nn.Linear(50, 40)
    generator = torch.Generator().manual_seed(3)
    kept = PowerAverages(model, CheckpointStore(tmp_path), every=50)
    truth = PolynomialDecay(model, gamma) if gamma is not None else EMA(model, decay or 0.0)
    centre = torch.randn(40, 50, generator=generator)
    for _ in range(1000):
        with torch.no_grad():
            model.weight.copy_(centre + torch.randn(40, 50, generator=generator))
        kept.update(model)
        truth.update(model)
    found = reconstruct(model, stored_snapshots(CheckpointStore(tmp_path)), gamma, decay)
    assert found.residual < bound
    assert found.coefficients.sum() == pytest.approx(1)
    # Noise of standard deviation 1 leaves ‖profile‖ in the true average; the residual is relative.
    profile = power_profile(gamma, 1000) if gamma is not None else ema_profile(decay or 0.0, 1000)
    noise_left = float(np.linalg.norm(profile))
    error = (found.weights()["weight"] - truth.weights()["weight"]).double()
    measured = error.pow(2).mean().sqrt().item() / noise_left
    assert measured == pytest.approx(found.residual, rel=0.1, abs=1e-5)


def test_a_drift_is_followed(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False)
    kept = PowerAverages(model, CheckpointStore(tmp_path), every=10)
    truth = PolynomialDecay(model, gamma=5)
    for step in range(200):
        nn.init.constant_(model.weight, step)
        kept.update(model)
        truth.update(model)
    found = reconstruct(model, kept.snapshots(), gamma=5)
    expected = truth.weights()["weight"].item()
    assert found.weights()["weight"].item() == pytest.approx(expected, rel=1e-3)


def test_a_constant_run_comes_back_exactly_even_from_a_poor_fit(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    kept = PowerAverages(model, CheckpointStore(tmp_path), every=10)
    for _ in range(20):
        kept.update(model)
    found = reconstruct(model, kept.snapshots(), decay=0.3, warmup=False)
    assert found.residual > 0.1
    torch.testing.assert_close(found.weights()["weight"], model.weight.detach(), rtol=1e-6, atol=0)
    with found.applied(model):
        pass


def test_a_resumed_run_stores_the_same_snapshots(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    store = CheckpointStore(tmp_path)
    kept = PowerAverages(model, store, every=2)
    for _ in range(5):
        kept.update(model)
    state = {name: tensor.clone() for name, tensor in kept.state_dict().items()}
    for _ in range(4):
        kept.update(model)  # lost by a crash
    store.append(model, step=9)
    resumed = PowerAverages(model, CheckpointStore(tmp_path), every=2)
    resumed.load_state_dict(state)
    assert [s.step for s in resumed.snapshots()] == [2, 4, 2, 4]
    assert [entry.step for entry in store.entries()] == [9]  # other kinds are left alone
    resumed.update(model)
    assert [s.step for s in resumed.snapshots()] == [2, 4, 6, 2, 4, 6]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    one = [Snapshot(5, 2.0, lambda: {name: p.detach() for name, p in model.named_parameters()})]
    with pytest.raises(ConfigurationError, match=r"snapshots=\[\]: must not be empty; update Pow"):
        reconstruct(model, [], gamma=1)
    with pytest.raises(ConfigurationError, match=r"^`gamma` or `decay` is required"):
        reconstruct(model, one)
    with pytest.raises(ConfigurationError, match=r"at=6: is later than the newest snapshot, 5"):
        reconstruct(model, one, gamma=1, at=6)
    with pytest.raises(ConfigurationError, match=r"'weight': is missing from a checkpoint, so"):
        reconstruct(model, [Snapshot(5, 2.0, dict)], gamma=1)
    with pytest.raises(ConfigurationError, match=r"gammas=\(2.0, 2.0\): must have two different"):
        PowerAverages(model, CheckpointStore(tmp_path), every=1, gammas=(2.0, 2.0))


def test_powers_are_fed_like_other_averages() -> None:
    model = nn.Linear(1, 1)
    averages = Averages([PolynomialDecay(model, gamma) for gamma in GAMMAS])
    averages.update(model)
    assert averages[1].updates == 1
