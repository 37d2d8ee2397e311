"""The step written out by hand is the engine's own, without its noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import by_hand
from steppe import Flat, SeededSource
from steppe.clipping import ClippedSum
from steppe.gradients import objective_of


class NoNoise(SeededSource):
    def fill_normal_(self, tensor: torch.Tensor, std: float) -> torch.Tensor:
        assert std == 1.0
        return tensor.zero_()


@pytest.mark.parametrize("gradient", [by_hand.by_formula, by_hand.by_autograd])
def test_it_is_the_clipped_mean(gradient: by_hand.Outputs) -> None:
    torch.manual_seed(0)
    layer, x, y = nn.Linear(6, 3), torch.randn(9, 6), torch.arange(9) % 3
    x[0] *= 0.01  # one that the clip leaves alone
    engine = ClippedSum(
        dict(layer.named_parameters()), objective_of(layer, F.cross_entropy), Flat(1.0)
    )
    wanted = torch.zeros(engine.width)
    norms = engine.add_(wanted, (x, y))
    assert bool((norms > 1).any())
    assert bool((norms < 1).any())
    with torch.no_grad():
        found = by_hand.private_gradient(layer, x, y, NoNoise(0), gradient)
    torch.testing.assert_close(found, wanted / 9)


def test_the_command_stores_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "by_hand.json"
    assert by_hand.main(["--rounds", "1", "--output", str(path)]) == 0
    stored = json.loads(path.read_text())
    by_autograd = "by hand, loss by autograd"
    assert stored["steps"].keys() == {"plain", "steppe", "by hand", by_autograd}
    assert stored["steps"]["plain"]["ratio"] == 1.0
