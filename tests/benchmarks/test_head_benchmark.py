"""The simulated head: its gradient against records taken one by one, and a small run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import head
from steppe import data


def test_the_clipped_mean_is_that_of_records_taken_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 5, generator=generator), torch.arange(7) % 3
    model = nn.Linear(5, 3, bias=False)
    wanted = torch.zeros(3, 5)
    for one, label in zip(x, y, strict=True):
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(one), label), [model.weight])
        wanted += gradient * min(1.0, 0.5 / float(gradient.norm())) / 7
    torch.testing.assert_close(head.clipped_mean(model.weight, x, y, 0.5), wanted)


def test_a_change_is_one_change() -> None:
    settings = head.experiment().settings
    recipe = settings["fashion-mnist, ε = 2"]
    for name, changed in (("with a bias", {"bias"}), ("50 steps, rate × 4", {"steps", "rate"})):
        other = settings[f"fashion-mnist, ε = 2, {name}"]
        assert {key for key in recipe if recipe[key] != other[key]} == changed


@pytest.mark.parametrize(("shaped", "bias"), [(True, False), (False, True)])
def test_a_small_run_learns(monkeypatch: pytest.MonkeyPatch, shaped: bool, bias: bool) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 600)
    x = np.zeros((600, 28, 28), np.uint8)
    x[np.arange(600), 2 * y + 3] = 255  # the label is the height of a bright line
    part = data.Split(x, y)
    found = data.Dataset("mnist", part, part, 10, "made up", "")
    monkeypatch.setattr(head, "load", lambda name: found)
    head.features.cache_clear()
    setting = head.constants("mnist", 3.0, shaped=shaped, bias=bias, steps=20)
    small = {**setting, "records": 200, "held out": 100}
    assert head.measure(small, seed=0)["accuracy"] > 0.5
    assert head.measure(small, seed=0) == head.measure(small, seed=0)
    head.features.cache_clear()
