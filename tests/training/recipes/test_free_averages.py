"""Averages by rule: they exist for every length of a run, and their names are short."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from steppe.training import recipes


@pytest.mark.parametrize("steps", [1, 4, 5, 200, 1_200, 997])
def test_averages_exist_for_every_length(steps: int) -> None:
    model = nn.Linear(2, 2)
    kept = recipes.averages(model, steps)
    for _ in range(steps):
        for average in kept:
            average.update(model)
    for average in kept:
        torch.testing.assert_close(average.weights()["weight"].float(), model.weight.detach())
    assert any(isinstance(average, recipes.PUBLISHED) for average in kept)


@pytest.mark.parametrize(
    ("steps", "decay"), [(1, 0.0), (60, 0.846), (200, 0.951), (600, 0.9835), (10**6, 0.99999)]
)
def test_the_decay_has_few_digits_since_it_is_in_names(steps: int, decay: float) -> None:
    assert recipes.published(nn.Linear(2, 2), steps).decay == decay
