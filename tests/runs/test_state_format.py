"""States in checkpoints: what comes back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from steppe.errors import ConfigurationError
from steppe.runs import pack, unpack


def through(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack("state", value, tensors), allow_nan=False))
    return unpack(packed, {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [1.5, None, True], "c": ("x", (1, 2))},
        {0: {"nested": {1: "one"}}, "text": "ε"},
        {"best": float("inf"), "worst": float("-inf")},
        {"$tensor": "a key that looks like ours"},
        {"a.b": 1, "a": {"b": 2}},
        {0: 1, "0": 2},
        [],
        {},
    ],
)
def test_states_come_back(value: Any) -> None:
    assert through(value) == value


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_optimizers_go_on_as_if_nothing_had_happened(make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (make(model.parameters()) for model in models)

    def step(model: nn.Module, optimizer: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()

    for seed in range(3):
        step(models[0], first, seed)
    models[1].load_state_dict(through(models[0].state_dict()))
    second.load_state_dict(through(first.state_dict()))
    step(models[0], first, 9)
    step(models[1], second, 9)
    assert torch.equal(models[0].weight, models[1].weight)


def test_what_is_neither_number_nor_tensor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"state\.a='object': cannot be written into a ch"):
        pack("state", {"a": object()}, {})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}}, r"state\.a\.b"),
        ({0: torch.zeros(2), "0": torch.ones(2)}, r"state\.0"),
        ({"a": [torch.zeros(2)], "a.0": torch.ones(2)}, r"state\.a\.0"),
    ],
)
def test_two_tensors_of_one_name_are_refused(value: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}=\(2,\): would be the name of two"):
        pack("state", value, {})
