"""Per-record norms against one backward pass a record, and what the histogram counts."""

from __future__ import annotations

import math

import pytest
import torch
from flatness_quadratics import seeded
from torch import nn
from torch.nn import functional as F

from steppe import models
from steppe.clipping.reference import record_gradients
from steppe.errors import ConfigurationError
from steppe.flatness import Surface, gradient_norm_histogram, record_gradient_norms
from steppe.gradients import objective_of


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("cnn-tanh-26k", (1, 28, 28), {}),
        ("vit", (3, 8, 8), {"size": 8, "width": 24, "depth": 2}),
    ],
)
def test_norms_equal_the_reference(
    name: str, shape: tuple[int, ...], options: dict[str, int]
) -> None:
    torch.manual_seed(0)
    model = models.create(name, **options)
    x, y = torch.randn(7, *shape, generator=seeded()), torch.arange(7)
    surface = Surface(model, F.cross_entropy, [(x[:5], y[:5]), (x[5:], y[5:])])
    expected = record_gradients(
        objective_of(model, F.cross_entropy), list(model.parameters()), (x, y)
    )
    found = record_gradient_norms(surface, chunk=2)
    torch.testing.assert_close(found, expected.double().norm(dim=1), rtol=1e-4, atol=1e-7)
    assert all(p.grad is None for p in model.parameters())
    assert model.training


def test_closed_form() -> None:
    """½(wᵀx − y)² has the gradient (wᵀx − y)·x."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    batch = (torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[2.0], [0.0]]))
    surface = Surface(model, lambda out, y: 0.5 * (out - y).square()[:, 0], [batch])
    assert record_gradient_norms(surface).tolist() == pytest.approx([10.0, 0.0])


def test_histogram() -> None:
    norms = torch.tensor([0.05, 0.1, 0.15, 0.55, 3.0, math.inf, math.nan, 0.3])
    found = gradient_norm_histogram(norms.double(), clip=0.2, bins=4, largest=1.0)
    assert found.edges == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert found.counts == (3, 1, 1, 0)
    assert found.beyond == 1
    assert found.not_finite == 2
    assert found.clipped_share == 5 / 8
    assert found.median == pytest.approx(0.15)
    assert sum(found.counts) + found.beyond + found.not_finite == len(norms)


def test_a_norm_equal_to_the_clip_is_not_clipped() -> None:
    assert gradient_norm_histogram(torch.tensor([0.5, 0.5]), clip=0.5).clipped_share == 0.0


def test_default_range_holds_everything() -> None:
    found = gradient_norm_histogram(torch.tensor([0.0, 7.0]), clip=1.0, bins=7)
    assert found.edges[-1] == 7.0
    assert found.counts == (1, 0, 0, 0, 0, 0, 1)
    assert found.beyond == 0


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="clip=0: must be finite and above 0"):
        gradient_norm_histogram(torch.ones(2), clip=0)
    with pytest.raises(ConfigurationError, match=r"norms=\(0,\): must have shape \(records,\)"):
        gradient_norm_histogram(torch.ones(0), clip=1.0)
    with pytest.raises(ConfigurationError, match=r"norms=-1.0: must not be negative; take norms"):
        gradient_norm_histogram(-torch.ones(2), clip=1.0)
