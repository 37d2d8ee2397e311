"""Eigenvalues, density and trace of quadratics with known spectra."""

from __future__ import annotations

import math

import pytest
import torch
from flatness_quadratics import quadratic_surface, rotated, seeded
from torch import Tensor, nn

from steppe.errors import ConfigurationError
from steppe.flatness import HessianTrace, Surface, hessian_trace, spectral_density, top_eigenvalues
from steppe.flatness.spectrum import lanczos

OUTLIERS = [9.0, 7.0, 4.0]
BULK = torch.linspace(-0.5, 0.5, 197, dtype=torch.float64)
SPECTRUM = torch.cat([torch.tensor(OUTLIERS, dtype=torch.float64), BULK])


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-6), (torch.float32, 1e-3)])
def test_top_eigenvalues_by_iteration(dtype: torch.dtype, error: float) -> None:
    surface = quadratic_surface(rotated(SPECTRUM / 2).to(dtype))
    found = top_eigenvalues(surface, seeded(), count=3)
    assert found.values == pytest.approx(OUTLIERS, rel=error)
    assert max(found.residuals) < 1e-2
    assert found.products < 100
    assert found.sharpness == found.values[0]
    assert found.ratio(3) == pytest.approx(9 / 4, rel=2 * error)


def test_largest_means_largest_and_not_largest_in_size() -> None:
    spectrum = torch.cat([torch.tensor([-50.0], dtype=torch.float64), SPECTRUM])
    found = top_eigenvalues(quadratic_surface(rotated(spectrum / 2)), seeded(), count=2)
    assert found.values == pytest.approx(OUTLIERS[:2], rel=1e-5)


def test_small_matrices_are_exact() -> None:
    surface = quadratic_surface(rotated([3.0, -1.0, 2.0]))
    found = top_eigenvalues(surface, seeded(), count=3)
    assert found.values == pytest.approx([6.0, 4.0, -2.0])
    assert max(found.residuals) < 1e-10


def test_eigenvalue_refusals() -> None:
    surface = quadratic_surface(rotated([3.0, 1.0]))
    with pytest.raises(ConfigurationError, match="count=3: must be at most the number of weights"):
        top_eigenvalues(surface, seeded(), count=3)
    with pytest.raises(ConfigurationError, match="tolerance=0: must be finite and above 0"):
        top_eigenvalues(surface, seeded(), tolerance=0)
    with pytest.raises(ConfigurationError, match="position=5: must be between 1 and 2; ask for"):
        top_eigenvalues(surface, seeded(), count=2).ratio()


def test_density_of_a_diagonal_is_exact() -> None:
    """Random signs weigh every axis alike, so nothing is left to chance."""
    diagonal = torch.diag(torch.tensor([3.0] * 10 + [0.0] * 80 + [-1.0] * 10, dtype=torch.float64))
    found = spectral_density(quadratic_surface(diagonal), seeded(), steps=10, starts=1)
    assert len(found.nodes[0]) == 3  # three distinct eigenvalues exhaust the space
    assert found.mass(5.9, 6.1) == pytest.approx(0.1)
    assert found.mass(-0.1, 0.1) == pytest.approx(0.8)
    assert found.mass(-2.1, -1.9) == pytest.approx(0.1)
    assert found.trace == pytest.approx(40.0)


def test_density_of_a_rotated_spectrum() -> None:
    found = spectral_density(quadratic_surface(rotated(SPECTRUM / 2)), seeded(), 60, starts=8)
    assert found.largest == pytest.approx(9.0, rel=1e-6)
    assert found.smallest == pytest.approx(-0.5, abs=0.01)
    # Masses of a random direction vary by about √(2p/n) for a share p of n weights.
    error = 5 * math.sqrt(2 * 0.5 / len(SPECTRUM) / 8)
    assert found.mass(-0.6, 0.0) == pytest.approx(0.49, abs=error)
    assert found.mass(-0.6, 0.6) == pytest.approx(0.985, abs=error / 4)
    assert found.trace == pytest.approx(20.0, rel=0.6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_eigenvalue_appears_twice(dtype: torch.dtype) -> None:
    matrix = rotated(SPECTRUM).to(dtype)
    start = torch.randn(len(SPECTRUM), generator=seeded(), dtype=torch.float64).to(dtype)
    nodes = torch.linalg.eigvalsh(lanczos(lambda v: (matrix @ v).double(), start, 120))
    assert [int(((nodes - outlier).abs() < 0.1).sum()) for outlier in OUTLIERS] == [1, 1, 1]


def test_density_integrates_to_one() -> None:
    found = spectral_density(quadratic_surface(rotated([1.0, 2.0, 4.0])), seeded(), 3, starts=2)
    points = [i / 100 for i in range(-200, 1200)]
    assert sum(found.at(points, width=0.1)) / 100 == pytest.approx(1.0, abs=1e-6)


def test_trace_of_a_diagonal_is_exact() -> None:
    diagonal = torch.diag(torch.arange(5, dtype=torch.float64))
    found = hessian_trace(quadratic_surface(diagonal), seeded(), samples=3)
    assert found.samples == pytest.approx([20.0] * 3)
    assert found.standard_error == pytest.approx(0.0)


def test_the_standard_error_of_two_samples_is_half_their_distance() -> None:
    found = HessianTrace((1.0, 4.0))
    assert found.estimate == 2.5
    assert found.standard_error == pytest.approx(1.5, rel=1e-12)


def test_trace_of_a_rotated_matrix() -> None:
    found = hessian_trace(quadratic_surface(rotated(SPECTRUM / 2)), seeded(), samples=200)
    assert abs(found.estimate - 20.0) < 4 * found.standard_error
    # vᵀHv varies by 2·Σ of squared entries off the diagonal, at most 2·Σλ².
    most = math.sqrt(2 * SPECTRUM.square().sum().item() / 200)
    assert 0.5 * most < found.standard_error < 1.2 * most


def test_refusals() -> None:
    surface = quadratic_surface(rotated([3.0, 1.0]))
    with pytest.raises(ConfigurationError, match="samples=1: must be at least 2 for an error bar"):
        hessian_trace(surface, seeded(), samples=1)
    with pytest.raises(ConfigurationError, match="steps=0: must be a whole number"):
        spectral_density(surface, seeded(), steps=0)
    with pytest.raises(ConfigurationError, match="width=-1: must be finite and above 0"):
        spectral_density(surface, seeded(), steps=2).at([0.0], width=-1)


def test_same_seed_same_numbers_and_progress_is_told() -> None:
    surface = quadratic_surface(rotated(SPECTRUM))
    told: list[tuple[int, int | None]] = []

    def tell(done: int, total: int | None) -> None:
        told.append((done, total))

    first = spectral_density(surface, seeded(3), 4, starts=2, progress=tell)
    assert first == spectral_density(surface, seeded(3), 4, starts=2)
    assert told == [(i, 8) for i in range(1, 9)]
    assert top_eigenvalues(surface, seeded(1)).values == top_eigenvalues(surface, seeded(1)).values
    assert hessian_trace(surface, seeded(2)) == hessian_trace(surface, seeded(2))
    assert hessian_trace(surface, seeded(2)) != hessian_trace(surface, seeded(4))


def test_lanczos_of_a_multiple_of_the_identity() -> None:
    def triple(vector: Tensor) -> Tensor:
        return 3 * vector

    found = lanczos(triple, torch.ones(7, dtype=torch.float64), 5)
    torch.testing.assert_close(found, torch.tensor([[3.0]], dtype=torch.float64))


def test_no_curvature_at_all() -> None:
    model = nn.Linear(100, 1)
    surface = Surface(model, lambda out, _: out[:, 0], [(torch.ones(3, 100), torch.ones(3))])
    found = top_eigenvalues(surface, seeded(), count=3)
    assert found.values == found.residuals == (0.0, 0.0, 0.0)
    assert found.ratio(3) == math.inf
