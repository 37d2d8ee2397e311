"""Whose Python runs in a step decides which generators must be secret."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from global_generators import states
from steppe.clipping.of_torch import _STILL_FUNCTIONS, _STILL_MODULES, draws_nothing, of_torch


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
    assert of_torch(code)


@pytest.mark.parametrize("name", OTHERS)
def test_somebody_elses(name: str) -> None:
    assert not of_torch(OTHERS[name]())


def test_a_hook_on_all_modules() -> None:
    model = nn.Linear(2, 2)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not of_torch(model)
    finally:
        handle.remove()
    assert of_torch(model)


def still(kind: type[nn.Module]) -> nn.Module:
    """A module of that kind, whatever it has to be told."""
    sizes: dict[str, Any] = {
        "in_features": 4,
        "out_features": 4,
        "in_channels": 2,
        "out_channels": 2,
        "kernel_size": 2,
        "num_groups": 2,
        "num_channels": 2,
        "normalized_shape": 4,
        "num_embeddings": 4,
        "embedding_dim": 2,
        "output_size": 2,
        "unflattened_size": (2, 2),
        "dim": -1,
    }
    wanted = inspect.signature(kind).parameters
    return kind(**{name: size for name, size in sizes.items() if name in wanted})


def called(module: nn.Module) -> None:
    """Run it on numbers of a form that it takes."""
    name = type(module).__name__
    axes = next((int(name[-2]) for end in ("1d", "2d", "3d") if name.endswith(end)), None)
    x = torch.rand(3, 2, *[4] * (1 if axes is None else axes))
    target = torch.rand(3, 2, 4)
    if isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss):
        target = torch.randint(2, (3, 4))
    before = states()
    if isinstance(module, nn.Embedding):
        module(torch.zeros(3, dtype=torch.long))
    elif name.endswith("Loss"):
        module(x, target)
    else:
        module(x)
    assert states() == before


@pytest.mark.parametrize("kind", sorted(_STILL_MODULES, key=lambda kind: kind.__name__))
def test_what_is_said_to_draw_nothing_draws_nothing(kind: type[nn.Module]) -> None:
    module = still(kind)
    assert draws_nothing(module)
    called(module)


@pytest.mark.parametrize("loss", sorted(_STILL_FUNCTIONS, key=lambda loss: loss.__name__))
def test_losses_that_draw_nothing(loss: Callable[..., Tensor]) -> None:
    assert draws_nothing(loss)
    assert draws_nothing(functools.partial(loss, reduction="none"))
    x, target = torch.rand(3, 2), torch.rand(3, 2)
    before = states()
    loss(x, torch.tensor([0, 1, 0]) if loss is F.nll_loss else target)
    assert states() == before


@pytest.mark.parametrize("name", OTHERS)
def test_somebody_elses_may_draw(name: str) -> None:
    assert not draws_nothing(OTHERS[name]())


def test_a_class_that_was_given_another_forward_may_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x)
    assert not draws_nothing(nn.ReLU())


@pytest.mark.parametrize(
    "model", [nn.Dropout(), nn.RReLU(), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), F.dropout]
)
def test_torchs_own_that_may_draw(model: Any) -> None:
    assert of_torch(model)
    assert not draws_nothing(model)


def test_a_hook_on_all_modules_may_draw() -> None:
    model = nn.Linear(2, 2)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not draws_nothing(model)
    finally:
        handle.remove()
    assert draws_nothing(model)
