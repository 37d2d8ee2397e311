"""The toy loss has two minima, and the sharp one answers noise more strongly."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from flatness_quadratics import seeded

from steppe.errors import ConfigurationError
from steppe.flatness import TwoMinima, noisy_descent

FLAT, SHARP = (2.5, 2.5), (7.5, 7.5)


def by_hand(w: tuple[float, float]) -> float:
    d1, d2 = math.dist(w, FLAT), math.dist(w, SHARP)
    f1 = 1 / (1 + math.exp(-(d1 / 5 - 5 / d1)))
    f2 = 1 / (1 + math.exp(-(5 * d2 / 5 - 5 / (5 * d2))))
    p1, p2 = math.exp(-d1), math.exp(-d2)
    return (f1 * p1 + f2 * p2) / (p1 + p2)


@pytest.mark.parametrize("w", [(0.0, 0.0), (3.0, 4.0), (5.0, 5.0), (7.0, 7.9), (9.0, 1.0)])
def test_formula(w: tuple[float, float]) -> None:
    found = TwoMinima()(torch.tensor(w, dtype=torch.float64)).item()
    assert found == pytest.approx(by_hand(w), rel=1e-9)


@pytest.mark.parametrize("centre", [FLAT, SHARP])
def test_each_centre_is_almost_zero_with_higher_ground_around(
    centre: tuple[float, float],
) -> None:
    surface = TwoMinima()
    middle = torch.tensor(centre, dtype=torch.float64)
    assert surface(middle) < 1e-3
    turns = torch.arange(8, dtype=torch.float64) * math.pi / 4
    ring = middle + 2 * torch.stack([turns.cos(), turns.sin()], 1)
    assert (surface(ring) > 0.05).all()


def test_derivatives_are_finite_at_the_centres() -> None:
    surface = TwoMinima()
    for centre in (FLAT, SHARP):
        point = torch.tensor(centre, dtype=torch.float64)
        assert torch.isfinite(surface.gradient(point)).all()
        assert math.isfinite(surface.sharpness(point))


def test_gradient_and_sharpness_by_differences() -> None:
    surface, step = TwoMinima(), 1e-5
    point = torch.tensor([6.8, 7.1], dtype=torch.float64)
    axes = step * torch.eye(2, dtype=torch.float64)
    slopes = torch.stack([(surface(point + e) - surface(point - e)) / (2 * step) for e in axes])
    torch.testing.assert_close(surface.gradient(point), slopes, rtol=1e-6, atol=1e-9)
    rows = [(surface.gradient(point + e) - surface.gradient(point - e)) / (2 * step) for e in axes]
    expected = torch.linalg.matrix_norm(torch.stack(rows), 2).item()
    assert surface.sharpness(point) == pytest.approx(expected, rel=1e-5)


def test_the_sharp_basin_amplifies_the_same_noise() -> None:
    flat = noisy_descent((FLAT[0] + 1.0, FLAT[1]), seeded(), steps=60)
    sharp = noisy_descent((SHARP[0] + 1.0, SHARP[1]), seeded(), steps=60)
    assert len(flat.points) == len(flat.losses) == len(flat.sharpness) == 61
    assert len(flat.gradient_differences) == 60
    assert statistics.fmean(sharp.sharpness) > 5 * statistics.fmean(flat.sharpness)
    changes = (
        statistics.fmean(sharp.gradient_differences),
        statistics.fmean(flat.gradient_differences),
    )
    assert changes[0] > 5 * changes[1]


def test_without_noise_the_path_only_falls() -> None:
    path = noisy_descent((8.5, 7.5), seeded(), steps=50, noise=0.0)
    assert all(b <= a for a, b in zip(path.losses, path.losses[1:], strict=False))
    assert set(path.gradient_differences) == {0.0}
    assert path == noisy_descent((8.5, 7.5), seeded(9), steps=50, noise=0.0)


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="rate=0: must be finite and above 0"):
        noisy_descent((1.0, 1.0), seeded(), rate=0)
    with pytest.raises(ConfigurationError, match=r"noise=-0.1: must be finite and not negative"):
        noisy_descent((1.0, 1.0), seeded(), noise=-0.1)
