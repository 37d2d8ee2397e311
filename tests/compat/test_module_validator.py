from __future__ import annotations

import pytest
import torch
from torch import nn

from steppe.compat import ModuleValidator
from steppe.errors import IsolationError


def test_names_every_layer() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True), nn.GroupNorm(2, 4)),
    )
    errors = ModuleValidator.validate(model)
    assert [str(error).split(":")[0] for error in errors] == [
        "layer='1' (BatchNorm2d)",
        "layer='2.0' (InstanceNorm2d)",
    ]
    with pytest.raises(IsolationError, match=r"layer='1'[\s\S]*layer='2.0'"):
        ModuleValidator.validate(model, strict=True)
    fixed = ModuleValidator.fix(model)
    assert ModuleValidator.is_valid(fixed)
    assert fixed(torch.randn(2, 1, 6, 6)).shape == (2, 4, 4, 4)


def test_the_module_itself() -> None:
    assert "layer='module'" in str(ModuleValidator.validate(nn.BatchNorm1d(3))[0])


def test_eval_mode_of_the_whole_hides_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).eval()
    assert not ModuleValidator.is_valid(model)
    model.train()[0].eval()
    assert ModuleValidator.is_valid(model)
