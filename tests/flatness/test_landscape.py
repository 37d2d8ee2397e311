"""Filter-normalised landscapes and paths against closed forms."""

from __future__ import annotations

import copy

import pytest
import torch
from flatness_quadratics import first, quadratic_surface, rotated, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.errors import ConfigurationError
from steppe.flatness import (
    Surface,
    filter_normalised_direction,
    interpolate,
    loss_line,
    loss_plane,
)


class SumOfSquares(nn.Module):
    """‖W‖² + ‖b‖² with a weight matrix and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 2, 2, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight.square().sum() + self.bias.square().sum()).expand(len(x))


def squares() -> tuple[SumOfSquares, Surface]:
    torch.manual_seed(0)
    model = SumOfSquares()
    return model, Surface(model, first, [(torch.zeros(2), torch.zeros(2))])


def test_filters_get_the_length_of_the_weights() -> None:
    model, surface = squares()
    direction = surface.split(filter_normalised_direction(surface, seeded()))
    torch.testing.assert_close(
        direction["weight"].flatten(1).norm(dim=1), model.weight.detach().flatten(1).norm(dim=1)
    )
    assert not direction["bias"].any()


def test_a_filter_of_zeros_does_not_move() -> None:
    model, surface = squares()
    nn.init.zeros_(model.weight)
    assert not filter_normalised_direction(surface, seeded()).any()


def test_line_of_a_quadratic() -> None:
    """ℓ(t) + ℓ(−t) = 2(‖W‖²(1 + t²) + ‖b‖²), whatever the direction."""
    model, surface = squares()
    weight, bias = model.weight.square().sum().item(), model.bias.square().sum().item()
    line = loss_line(surface, seeded(), radius=2.0, points=9)
    assert line.positions == (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
    assert line.losses[4] == pytest.approx(weight + bias, rel=1e-12)
    for i, t in enumerate(line.positions):
        both = line.losses[i] + line.losses[8 - i]
        assert both == pytest.approx(2 * (weight * (1 + t * t) + bias), rel=1e-12)
    assert line.accuracies == (None,) * 9


def test_plane_of_a_quadratic() -> None:
    _, surface = squares()
    plane = loss_plane(surface, seeded(), points=3)
    generator = seeded()
    u, v = (filter_normalised_direction(surface, generator) for _ in range(2))
    assert not torch.equal(u, v)
    for i, s in enumerate(plane.positions):
        for j, t in enumerate(plane.positions):
            expected = (surface.weights + s * u + t * v).square().sum().item()
            assert plane.losses[i][j] == pytest.approx(expected, rel=1e-12)


def test_path_of_a_quadratic() -> None:
    matrix = rotated([1.0, 4.0, 9.0])
    a, b = torch.randn(2, 3, generator=seeded(), dtype=torch.float64)
    one, two = quadratic_surface(matrix, a).model, quadratic_surface(matrix, b).model
    data = {
        "train": [(torch.full((2,), 2.0, dtype=torch.float64), torch.zeros(2))],
        "test": [(torch.full((1,), 6.0, dtype=torch.float64), torch.zeros(1))],
    }
    path = interpolate(one, two, first, data)
    assert path.positions[0] == -0.5
    assert path.positions[-1] == 1.5
    assert {0.0, 1.0} <= set(path.positions)
    for i, alpha in enumerate(path.positions):
        w = (1 - alpha) * a + alpha * b
        loss = (w @ matrix @ w).item()
        assert path.measured["train"][i].loss == pytest.approx(loss, rel=1e-9)
        assert path.measured["test"][i].loss == pytest.approx(3 * loss, rel=1e-9)


def test_the_ends_are_the_solutions_bit_for_bit() -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    path = interpolate(one, two, F.cross_entropy, {"all": data}, positions=(0.0, 1.0))
    for measured, model in zip(path.measured["all"], (one, two), strict=True):
        surface = Surface(model, F.cross_entropy, data)
        assert measured == surface.at(surface.weights)


def test_refusals() -> None:
    _, surface = squares()
    for points in (1, 4):
        with pytest.raises(ConfigurationError, match=f"points={points}: must be odd and at least"):
            loss_line(surface, seeded(), points=points)
    with pytest.raises(ConfigurationError, match="radius=nan: must not be NaN"):
        loss_plane(surface, seeded(), radius=float("nan"))
    with pytest.raises(
        ConfigurationError, match="second='Linear': must have the same trained weights"
    ):
        interpolate(nn.Linear(2, 2), nn.Linear(2, 3), F.mse_loss, {"all": []})
    with pytest.raises(ConfigurationError, match=r"data=.*: must name at least one data set"):
        interpolate(nn.Linear(2, 2), nn.Linear(2, 2), F.mse_loss, {})
    norm = nn.BatchNorm1d(2)
    other = copy.deepcopy(norm)
    other.running_mean = torch.ones(2)
    with pytest.raises(ConfigurationError, match="must have the same buffers as `first`"):
        interpolate(norm, other, F.mse_loss, {"all": []})
    for one, two in ((norm, nn.GroupNorm(1, 2)), (nn.GroupNorm(1, 2), norm)):
        with pytest.raises(ConfigurationError, match="must have the same buffers as `first`"):
            interpolate(one, two, F.mse_loss, {"all": []})


def test_the_line_leads_through_weights_in_one_order_and_frozen_ones_alike() -> None:
    one, two = nn.Sequential(), nn.Sequential()
    for name in ("a", "b"):
        one.add_module(name, nn.Linear(3, 3))
    for name in ("b", "a"):
        two.add_module(name, nn.Linear(3, 3))
    with pytest.raises(ConfigurationError, match="names, shapes and order"):
        interpolate(one, two, F.mse_loss, {"all": []})
    three, four = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    for model in (three, four):
        model[0].requires_grad_(False)
    with pytest.raises(ConfigurationError, match="must have the same frozen weights as `first`"):
        interpolate(three, four, F.mse_loss, {"all": []})
