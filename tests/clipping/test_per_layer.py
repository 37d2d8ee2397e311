"""One budget, a bound for each layer."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import steppe
from steppe.clipping import ClippedSum, PerLayer
from steppe.clipping.reference import record_gradients

MODEL = nn.ModuleDict(
    {"body": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), "head": nn.Linear(2, 1, bias=False)}
)
WEIGHTS = dict(MODEL.named_parameters())
SIZES = {name: weight.numel() for name, weight in WEIGHTS.items()}


@pytest.mark.parametrize(
    ("budget", "squares"),
    [
        ("equal", {"body.0": 1 / 3, "body.1": 1 / 3, "head": 1 / 3}),
        ("size", {"body.0": 16 / 28, "body.1": 10 / 28, "head": 2 / 28}),
        ({"body": 3, "head": 1}, {"body": 0.75, "head": 0.25}),
        ({"body.1.bias": 1, "": 1}, {"": 0.5, "body.1.bias": 0.5}),
        ({"body": 1.5e308, "head": 0.5e308}, {"body": 0.75, "head": 0.25}),
    ],
    ids=["equal", "size", "prefixes", "one weight", "sum beyond floats"],
)
def test_squares_of_the_bounds_add_up(budget: object, squares: dict[str, float]) -> None:
    clip = PerLayer(2.0, budget)  # type: ignore[arg-type]
    bounds = clip.bounds(clip.layers(WEIGHTS), SIZES)
    assert {name: (b / 2) ** 2 for name, b in bounds.items()} == pytest.approx(squares)
    assert math.fsum(b**2 for b in bounds.values()) == pytest.approx(4.0)


def test_every_layer_is_cut_at_its_own_bound() -> None:
    clip = PerLayer(1.0, {"body": 3, "head": 1})
    clipper = clip.begin(WEIGHTS)
    gradient = torch.zeros(1, 28, dtype=torch.float64)
    gradient[0, 0], gradient[0, 20], gradient[0, 27] = 3.0, 4.0, 0.2
    part = clipper.encode(gradient)[0]
    assert part[[0, 20, 27]].tolist() == pytest.approx([0.6 * 0.75**0.5, 0.8 * 0.75**0.5, 0.2])


def test_norms_that_two_layers_share_are_not_changed_by_the_first() -> None:
    """With one position, a bias has the norm of its layer's output gradient, which is kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    parameters = dict(reversed(list(model.named_parameters())))  # biases first
    clip = PerLayer(0.5, {"2.bias": 1, "0.bias": 1, "": 1})
    engine = ClippedSum(parameters, lambda x: model(x).square().sum(1) / 7, clip)
    x = torch.randn(7, 3).double()
    out = torch.zeros(engine.width, dtype=torch.float64)
    with torch.no_grad():
        engine.add_slots_(out, engine.slots(x), 7, scale=7.0)
    gradients = 7 * record_gradients(engine.objective, list(parameters.values()), x)
    torch.testing.assert_close(out, engine.clipper.encode(gradients).sum(0), rtol=1e-6, atol=1e-9)


def test_a_weight_outside_of_any_module_is_a_layer() -> None:
    assert PerLayer().layers({"scale": ..., "a.b.weight": ..., "a.b.bias": ...}) == {
        "scale": ["scale"],
        "a.b": ["a.b.weight", "a.b.bias"],
    }


def test_the_plan_writes_the_shares_down_and_reads_them_back() -> None:
    def plan(clip: PerLayer) -> steppe.Plan:
        return steppe.Plan(
            delta=1e-5, noise_multiplier=1.0, population=100, batch_size=10, steps=2, clip=clip
        )

    one = plan(PerLayer(1.0, {"head": 1, "body": 3}))
    other = plan(PerLayer(1.0, {"body": 3.0, "head": 1.0}))
    assert one.digest() == other.digest() != plan(PerLayer(1.0)).digest()
    assert hash(one) == hash(other)
    described = json.loads(json.dumps(one.to_dict()))["clip"]
    assert described == {"kind": "PerLayer", "bound": 1.0, "budget": [["body", 3.0], ["head", 1.0]]}
    assert PerLayer(described["bound"], described["budget"]) == one.clip
