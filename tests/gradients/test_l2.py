"""λθ before the clip, one λ or one for each part of the model."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.clipping import ClippedSum, Flat
from steppe.errors import ConfigurationError
from steppe.utils import name_prefixes


def plan(**constants: Any) -> steppe.Plan:
    values = {"delta": 1e-5, "noise_multiplier": 1.0, "population": 100, "batch_size": 10}
    return steppe.Plan(**(values | {"steps": 2} | constants))


def test_the_digest_does_not_depend_on_the_order() -> None:
    one, other = plan(l2={"head": 1e-3, "": 0}), plan(l2={"": 0.0, "head": 0.001})
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest() == other.digest() != plan(l2=1e-3).digest()
    assert json.loads(json.dumps(one.to_dict()))["l2"] == {"": 0.0, "head": 0.001}
    assert plan(l2=one.to_dict()["l2"]) == one
    assert plan().for_population if one.population is None else one.epsilon_spent() > 0


def test_every_weight_has_the_lambda_of_its_longest_prefix() -> None:
    names = ["body.0.weight", "body.1.weight", "header.bias", "head.bias"]
    chosen = name_prefixes.pairs("l2", {"body": 1, "body.1": 2, "head": 3}, lambda _, value: value)
    assert name_prefixes.match("l2", chosen, names) == {
        "body.0.weight": "body",
        "body.1.weight": "body.1",
        "header.bias": None,
        "head.bias": "head",
    }


@pytest.mark.parametrize(
    ("l2", "message"),
    [
        (-0.1, r"l2=-0\.1: must be finite and not negative"),
        (float("nan"), r"l2=nan: must not be NaN"),
        ({"head": -1.0}, r"l2\['head'\]=-1\.0: must be finite and not negative"),
        ({"head": float("nan")}, r"l2\['head'\]=nan: must not be NaN"),
        ({}, r"l2=\{\}: must name at least one prefix"),
        ({3: 0.1}, r"l2=3: must have weight names as its keys"),
        ((("a", 1.0), ("a", 2.0)), r"must name every prefix once"),
        ("0.1", r"l2='0\.1': must be a real number"),
    ],
)
def test_bad_values_are_refused(l2: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(l2=l2)


def test_a_prefix_without_weights_is_refused_at_set_up() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.randn(100, 2), torch.randn(100, 1))
    with pytest.raises(ConfigurationError, match=r"l2='head': must begin the name of a trained"):
        steppe.make_private(
            model, optimizer, data, plan(l2={"head": 0.1}), loss=nn.functional.mse_loss
        )


def one_step(optimizer_of: Any, l2: Any, decay: float = 0.0) -> tuple[dict[str, Tensor], nn.Module]:
    """One step without noise and clip on a loss that does not depend on the weights."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1).double()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = optimizer_of(model)
    if decay:
        steppe.DecoupledDecay(optimizer, decay)
    engine = ClippedSum(
        dict(model.named_parameters()), lambda x: 0.0 * model(x)[:, 0], Flat(1e9), l2=l2
    )
    total = torch.zeros(engine.width, dtype=torch.float64)
    engine.add_(total, torch.randn(4, 2, dtype=torch.float64))
    for name, weight in model.named_parameters():
        weight.grad = engine.part_of(total / 4, name)
    optimizer.step()
    return before, model


def test_the_l2_term_is_gradient_descent_on_the_penalty() -> None:
    """θ ← θ − η λ θ, by the λ of each part."""
    before, model = one_step(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1), {"weight": 0.5, "bias": 0.2}
    )
    assert torch.allclose(model.weight, before["weight"] * (1 - 0.1 * 0.5), rtol=1e-6)
    assert torch.allclose(model.bias, before["bias"] * (1 - 0.1 * 0.2), rtol=1e-6)


def test_both_decays_add_up_and_stay_apart() -> None:
    """θ ← (1 − η w) θ − η λ θ₀: decay beside the gradient, λθ inside."""
    before, model = one_step(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), 0.5, decay=0.3
    )
    assert torch.allclose(model.weight, before["weight"] * (1 - 0.03 - 0.05), rtol=1e-6)
