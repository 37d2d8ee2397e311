"""Weights move and come back bit for bit."""

import pytest
import torch

from steppe.points import Here, Weights


def test_moved_weights_come_back_exactly_even_after_an_error() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 2), torch.randn(4).to(torch.bfloat16)]
    before = [w.clone() for w in weights]
    direction = torch.randn(10) * 1e3

    def stand() -> None:
        with Weights(weights).moved(direction):
            assert torch.allclose(weights[0], before[0] + direction[:6].view(3, 2))
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stand()
    assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))


def test_here_asks_once() -> None:
    asked = []
    walk = Here().begin(Weights([]))
    assert walk(lambda: asked.append(1) or torch.ones(2)).equal(torch.ones(2))  # type: ignore[func-returns-value]
    assert len(asked) == Here().queries == 1
