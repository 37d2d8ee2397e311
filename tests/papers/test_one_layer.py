"""The closed form takes the engine's steps, and its averages are those of the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steppe
from steppe.errors import ConfigurationError
from steppe.papers.one_layer import Cycles, Problem, cross_entropy, descend, squared_error

PLAN = steppe.Plan(
    noise_multiplier=0.7, delta=1e-4, population=60, batch_size=6, steps=12, clip=steppe.Flat(0.8)
)


def problem(classes: int) -> Problem:
    random = np.random.default_rng(3)
    inputs = random.standard_normal((60, 5)).astype(np.float32)
    if classes == 1:
        return Problem(inputs, random.standard_normal(60).astype(np.float32), squared_error)
    return Problem(inputs, random.integers(classes, size=60), cross_entropy)


@pytest.mark.parametrize(("classes", "loss"), [(3, F.cross_entropy), (1, F.mse_loss)])
def test_steps_are_those_of_the_engine(classes: int, loss: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    what = problem(classes)
    model = nn.Linear(5, classes, bias=False)
    start = model.weight.detach().numpy().copy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    targets = torch.from_numpy(what.targets)
    data = (torch.from_numpy(what.inputs), targets.unsqueeze(1) if classes == 1 else targets)
    private = steppe.make_private(
        model, optimizer, data, PLAN, loss=loss, source=steppe.SeededSource(5)
    )
    walk = descend(what, start, PLAN, steppe.SeededSource(5), 0.3, block=1)
    for batch, (first, path) in zip(private, walk, strict=True):
        private.step(batch)
        assert first == private.steps_done - 1
        np.testing.assert_allclose(path[0], model.weight.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert private.steps_done == 12


def test_blocks_follow_the_same_law() -> None:
    """Means and spreads over many runs agree, whatever the block."""
    what, runs = problem(3), 300
    ends = {}
    for block in (1, 5):
        found = []
        for seed in range(runs):
            walk = descend(
                what, np.zeros((3, 5), np.float32), PLAN, steppe.SeededSource(seed), 0.3, block
            )
            for _, path in walk:
                last = path[-1].copy()
            found.append(last)
        ends[block] = np.array(found)
    error = np.sqrt((ends[1].var(0) + ends[5].var(0)) / runs)
    assert np.abs((ends[1].mean(0) - ends[5].mean(0)) / error).max() < 4.5
    assert np.abs(np.log(ends[1].var(0) / ends[5].var(0))).max() < 4.5 * np.sqrt(4 / runs)


def test_cycles_are_swa() -> None:
    model = nn.Linear(4, 1, bias=False)
    path = np.random.default_rng(0).standard_normal((50, 1, 4)).astype(np.float32)
    cycles = Cycles(50, 0.3, (1, 3, 7))
    averages = [steppe.SWA(model, cycle=c, warmup=0.3, steps=50) for c in (1, 3, 7)]
    for start in range(0, 50, 8):
        cycles.absorb(start, path[start : start + 8])
    for weights in path:
        model.weight.data = torch.from_numpy(weights)
        for average in averages:
            average.update(model)
    for cycle, average in zip((1, 3, 7), averages, strict=True):
        mean = average.weights()["weight"].numpy()
        np.testing.assert_allclose(cycles.mean(cycle), mean, rtol=1e-5, atol=1e-6)
    assert Cycles(50, 0.3, (1,)).mean(1) is None


@pytest.mark.parametrize(
    "changes", [{"point": steppe.SAT(0.1)}, {"l2": 0.1}, {"noise": steppe.Gaussian(grid=True)}]
)
def test_other_plans_are_refused(changes: dict[str, Any]) -> None:
    walk = descend(
        problem(3), np.zeros((3, 5), np.float32), replace(PLAN, **changes), steppe.SecureSource(), 1
    )
    with pytest.raises(ConfigurationError, match="closed form"):
        next(walk)
