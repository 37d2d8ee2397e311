"""Weight decay beside the gradient, whatever the optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import steppe
from steppe.errors import ConfigurationError


def run(kind: str, decay: float, steps: int) -> float:
    """One weight under zero gradients."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    inside = decay if kind.endswith("inside") else 0.0
    momentum = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=inside)
    optimizer = {
        "AdamW": lambda: torch.optim.AdamW([weight], lr=0.1, weight_decay=decay),
        "SGD inside": lambda: momentum,
        "SGD": lambda: momentum,
    }[kind]()
    if kind == "SGD":
        steppe.DecoupledDecay(optimizer, decay)
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    return float(weight.detach())


def test_it_is_the_decay_of_adamw_and_not_that_of_sgd() -> None:
    assert run("SGD", 0.5, 20) == pytest.approx(0.95**20)
    assert run("AdamW", 0.5, 20) == pytest.approx(0.95**20)
    assert run("SGD inside", 0.5, 1) == pytest.approx(0.95)
    assert abs(run("SGD inside", 0.5, 20) - 0.95**20) > 0.1  # momentum goes on pulling


def test_schedulers_reach_it_and_frozen_weights_do_not_move() -> None:
    weight, frozen = (nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.SGD([weight, frozen], lr=0.4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    decay = steppe.DecoupledDecay(optimizer, 0.5)
    for _ in range(2):
        weight.grad = torch.zeros(1)
        optimizer.step()
        scheduler.step()
    assert float(weight.detach()) == pytest.approx(0.8 * 0.9)
    assert float(frozen.detach()) == 1.0
    decay.remove()
    optimizer.step()
    assert float(weight.detach()) == pytest.approx(0.8 * 0.9)


def test_decaying_twice_and_bad_numbers_are_refused() -> None:
    weight = nn.Parameter(torch.ones(1))
    twice = torch.optim.SGD([weight], lr=0.1, weight_decay=0.1)
    with pytest.raises(ConfigurationError, match=r"weight_decay=0\.1: must be 0 in the optimizer"):
        steppe.DecoupledDecay(twice, 0.5)
    with pytest.raises(ConfigurationError, match=r"strength=-1: must be finite and not negative"):
        steppe.DecoupledDecay(torch.optim.SGD([weight], lr=0.1), -1)
