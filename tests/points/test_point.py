"""Weights move and come back bit for bit."""

import pytest
import torch
from torch import nn

from steppe.points import Here, MovableWeights


def test_moved_weights_come_back_exactly_even_after_an_error() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4).to(torch.bfloat16))]
    before = [w.detach().clone() for w in weights]
    direction = torch.randn(10) * 1e3

    def stand() -> None:
        with MovableWeights(weights).moved(direction):
            assert torch.allclose(weights[0], before[0] + direction[:6].view(3, 2))
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stand()
    assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))


def test_none_moves_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    with MovableWeights([weight]).moved(None):
        assert weight.detach().equal(torch.ones(2))


def test_a_direction_is_scaled_over_all_weights_together() -> None:
    weights = MovableWeights([nn.Parameter(torch.zeros(1, 2)), nn.Parameter(torch.zeros(1))])
    scaled = weights.scaled(torch.tensor([2.0, 3.0, 6.0]), 0.7)
    assert scaled is not None
    torch.testing.assert_close(scaled, torch.tensor([0.2, 0.3, 0.6]))


@pytest.mark.parametrize("vector", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_what_has_no_length_is_no_direction(vector: list[float]) -> None:
    assert MovableWeights([nn.Parameter(torch.zeros(2))]).scaled(torch.tensor(vector), 1.0) is None


def test_lengths_that_float32_cannot_square_are_measured() -> None:
    weights = MovableWeights([nn.Parameter(torch.zeros(2))])
    for length in (1e-25, 1e25):
        scaled = weights.scaled(torch.tensor([0.6, 0.8]) * length, 1.0)
        assert scaled is not None
        torch.testing.assert_close(scaled, torch.tensor([0.6, 0.8]))


def test_frozen_weights_stay_and_do_not_count() -> None:
    free, frozen = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1), requires_grad=False)
    weights = MovableWeights([frozen, free])
    with weights.moved(weights.scaled(torch.tensor([100.0, 3.0]), 0.5)):
        assert (frozen.item(), free.item()) == (0.0, 0.5)
    assert MovableWeights([frozen]).scaled(torch.ones(1), 0.5) is None


def test_flat_is_a_copy_in_full_precision() -> None:
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    flat = MovableWeights([half, nn.Parameter(torch.zeros(1))]).flat()
    flat += 1
    assert flat.dtype == torch.float32
    assert half.tolist() == [1.0, 1.0]
    assert (
        MovableWeights([half, nn.Parameter(torch.zeros(1).double())]).flat().dtype == torch.float64
    )


def test_here_asks_once() -> None:
    run = Here().begin(MovableWeights([]))
    assert Here().queries == 1
    assert run.offset([]) is None
    assert run.gradient([torch.ones(2)]).equal(torch.ones(2))
