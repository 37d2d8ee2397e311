"""Whose Python runs in a step decides which generators must be secret."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from steppe.gradients.torch_only import is_torch_only


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def hooked(register: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    getattr(model[0], register)(lambda *_: None)
    return model


def with_forward() -> nn.Module:
    model = nn.Linear(2, 2)
    model.forward = lambda input: input  # type: ignore[method-assign]
    return model


def with_inner_forward() -> nn.Module:
    model = nn.Conv2d(1, 1, 1)
    model._conv_forward = lambda x, weight, bias: x  # type: ignore[method-assign]
    return model


def with_own_weight() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight = type("Weight", (nn.Parameter,), {})(torch.zeros(2, 2))
    return model


@functools.wraps(F.cross_entropy)
def wrapped(output: Tensor, target: Tensor) -> Tensor:
    return output


def parametrized() -> nn.Module:
    model = nn.Linear(2, 2)
    parametrize.register_parametrization(model, "weight", Own())
    return model


TORCHS: list[Any] = [
    nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Dropout(), nn.Flatten()),
    nn.LSTM(2, 2),
    F.cross_entropy,
    functools.partial(F.cross_entropy, reduction="sum"),
    nn.CrossEntropyLoss(),
]
OTHERS: dict[str, Callable[[], Any]] = {
    "module of one's own": Own,
    "inside": lambda: nn.Sequential(nn.Linear(2, 2), Own()),
    "subclass": lambda: type("Wider", (nn.Linear,), {})(2, 2),
    "forward": with_forward,
    "forward of a convolution": with_inner_forward,
    "weight": with_own_weight,
    "wrapped": lambda: wrapped,
    "object without a hash": lambda: type("Loss", (), {"__call__": max, "__hash__": None})(),
    "part of a function": lambda: functools.partial(
        F.triplet_margin_with_distance_loss, distance_function=lambda x, y: x - y
    ),
    "activation": lambda: nn.TransformerEncoderLayer(4, 1, activation=lambda x: x),
    "distance": lambda: nn.TripletMarginWithDistanceLoss(distance_function=lambda x, y: x - y),
    "parametrisation": parametrized,
    "compiled": lambda: torch.jit.ScriptModule() if hasattr(torch, "jit") else Own(),
    "function": lambda: lambda output, target: output,
    "partial": lambda: functools.partial(lambda output, target: output),
    **{
        register: functools.partial(hooked, register)
        for register in (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
        )
    },
}


@pytest.mark.parametrize("code", TORCHS, ids=range(len(TORCHS)))
def test_torchs_own(code: Any) -> None:
    assert is_torch_only(code)


@pytest.mark.parametrize("name", OTHERS)
def test_somebody_elses(name: str) -> None:
    assert not is_torch_only(OTHERS[name]())


def test_a_hook_on_all_modules() -> None:
    model = nn.Linear(2, 2)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_torch_only(model)
    finally:
        handle.remove()
    assert is_torch_only(model)
