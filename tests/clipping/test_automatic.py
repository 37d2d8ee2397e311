"""Every gradient is brought to the bound; small ones stay small with gamma."""

import math

import pytest
import torch

from steppe.clipping import Automatic


def test_factors_by_hand() -> None:
    norms = torch.tensor([0.0, 0.1, 3.9, math.inf, math.nan], dtype=torch.float64)
    stable = Automatic(2.0, gamma=0.1).factors(norms)
    assert stable.tolist() == pytest.approx([20.0, 10.0, 0.5, 0.0, math.nan], nan_ok=True)
    plain = Automatic(2.0, gamma=0.0).factors(norms)
    assert plain[1:].tolist() == pytest.approx([20.0, 2.0 / 3.9, 0.0, math.nan], nan_ok=True)
    assert math.isfinite(plain[0])


def test_without_gamma_every_gradient_has_the_same_length() -> None:
    norms = torch.tensor([1e-12, 1e-3, 1.0, 1e12], dtype=torch.float64)
    assert (Automatic(0.7, gamma=0.0).factors(norms) * norms).tolist() == pytest.approx([0.7] * 4)


def test_a_factor_fits_into_float32_for_every_norm() -> None:
    norms = torch.tensor([0.0, 5e-324, 1e-200, 1e-45], dtype=torch.float64)
    assert torch.isfinite(Automatic(1e3, gamma=0.0).factors(norms).float()).all()
