"""Why a private head on scattering features has the constants it has, on held-out records.

`python -m benchmarks.head` changes one choice of the recipe at a time (features, rate, steps, bias)
and scores the published average on 10,000 of the training records; the test records are not
touched. The steps are simulated, for speed: the noise that the plan has for its whole batch, on the
clipped gradients of 6,000 records. Every (setting, seed) goes to `benchmarks/results/head.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from benchmarks import stored
from steppe.data import load
from steppe.models.scattering import Scattering
from steppe.papers.experiment import Column, Experiment
from steppe.training import recipes

HELD_OUT = 10_000
RECORDS = 6_000
_AT_ONCE = 64


def experiment() -> Experiment:
    """The recipe as it is, and with one choice changed."""
    settings: dict[str, dict[str, Any]] = {}

    def add(data: str, epsilon: float, change: str = "", **changed: Any) -> None:
        name = f"{data}, ε = {epsilon:g}"
        settings[f"{name}, {change}" if change else name] = constants(data, epsilon, **changed)

    for data, epsilon in (
        ("fashion-mnist", 1.0),
        ("fashion-mnist", 2.0),
        ("fashion-mnist", 3.0),
        ("mnist", 2.0),
    ):
        add(data, epsilon)
        if epsilon != 2 or data == "mnist":
            add(data, epsilon, "coefficients as they are", shaped=False)
        if epsilon != 2:
            add(data, epsilon, "rate × 0.7", factor=0.7)
            add(data, epsilon, "rate × 1.4", factor=1.4)
        else:
            add(data, epsilon, "100 steps, rate × 2", steps=100, factor=2.0)
    add("fashion-mnist", 2.0, "50 steps, rate × 4", steps=50, factor=4.0)
    add("fashion-mnist", 2.0, "with a bias", bias=True)
    return Experiment(
        name="head",
        paper="Strong defaults",
        item="a private head on scattering features, simulated, 10,000 held-out records",
        settings=settings,
        seeds=range(3),
        measure=measure,
        columns=(Column("accuracy", "{:.2%}"),),
        expected="no change is better by more than the spread",
        minutes=0.5,
    )


def constants(
    data: str,
    epsilon: float,
    *,
    factor: float = 1.0,
    shaped: bool = True,
    bias: bool = False,
    steps: int | None = None,
) -> dict[str, Any]:
    """Everything that decides a run but its seed; what is not changed is the recipe's."""
    front = Scattering()
    chosen = recipes.choose(
        population=60_000, epsilon=epsilon, weights=10 * front.features, front_end="features"
    )
    return {
        "data": data,
        "epsilon": epsilon,
        "delta": chosen.delta,
        "population": chosen.population,
        "batch": chosen.batch_size,
        "steps": steps or chosen.steps,
        "clip": chosen.clip,
        "momentum": chosen.momentum,
        "rate": factor * chosen.rate,
        "shaped": shaped,
        "bias": bias,
        "records": RECORDS,
        "held out": HELD_OUT,
    }


def measure(setting: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Train a head and score its exponential average on the held-out records."""
    x, y = features(setting["data"], setting["shaped"])
    if setting["bias"]:
        x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randperm(len(x), generator=generator)
    train, held_out = mixed[setting["held out"] :], mixed[: setting["held out"]]
    plan = steppe.Plan(
        epsilon=setting["epsilon"],
        delta=setting["delta"],
        population=setting["population"],
        batch_size=setting["batch"],
        steps=setting["steps"],
        clip=steppe.Flat(setting["clip"]),
    )
    spread = plan.sigma * setting["clip"] / setting["batch"]
    head = nn.Linear(x.shape[1], 10, bias=False)
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD(head.parameters(), lr=setting["rate"], momentum=setting["momentum"])
    published = recipes.published(head, setting["steps"])
    generator.manual_seed(seed + 1)
    for _ in range(setting["steps"]):
        taken = train[torch.randint(len(train), (setting["records"],), generator=generator)]
        gradient = clipped_mean(head.weight, x[taken], y[taken], setting["clip"])
        noise = torch.randn(gradient.shape, generator=generator)
        head.weight.grad = gradient.add_(noise, alpha=spread)
        optimizer.step()
        published.update(head)
    with published.applied(head), torch.no_grad():
        right = head(x[held_out]).argmax(1) == y[held_out]
    return {"accuracy": float(right.double().mean()), "sigma": plan.sigma}


@torch.no_grad()
def clipped_mean(weight: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """Mean over records of the clipped gradient of the cross entropy of a linear head."""
    wrong = (x @ weight.T).softmax(1) - F.one_hot(y, len(weight))
    # The gradient of a record is the outer product of two vectors.
    norms = wrong.norm(dim=1) * x.norm(dim=1)
    return (wrong * (bound / norms.clamp(min=bound))[:, None]).T @ x / len(x)


@lru_cache(maxsize=4)
def features(name: str, shaped: bool) -> tuple[Tensor, Tensor]:
    """Scattering features of the training records, as shipped or with coefficients as they are."""
    x, y = load(name).train.tensors()
    front = Scattering()

    def as_they_are(pictures: Tensor) -> Tensor:
        grouped = F.group_norm(front.maps(pictures), front.groups, eps=1e-6)
        return F.normalize(grouped.flatten(1))

    transform = front if shaped else as_they_are
    return torch.cat([transform(part) for part in x.split(_AT_ONCE)]), y


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then show everything; returns the exit status."""
    return stored.show(experiment(), "head", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
