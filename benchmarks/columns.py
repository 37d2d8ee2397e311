"""Why the clip of a model of columns is 1: accuracy and loss on Adult by clip.

`python -m benchmarks.columns` trains by the recipe with another clip, on the whole of Adult and on
2,000 of its records, and stores every (setting, seed) in `benchmarks/results/columns.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import steppe
from benchmarks import stored
from steppe.data import load
from steppe.papers.experiment import Column, Experiment
from steppe.training import recipes

FEATURES = 113
CLIPS = (0.1, 1.0, 2.0)
# How many records, and their ε.
TASKS = ((32_561, 2.0), (2_000, 1.0))


def network(name: str) -> nn.Module:
    """A logistic model, or two hidden layers of 64."""
    if name == "logistic":
        return nn.Linear(FEATURES, 2)
    return nn.Sequential(
        *(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    )


def experiment() -> Experiment:
    """Every task, model and clip."""
    return Experiment(
        name="columns",
        paper="Strong defaults",
        item="the clip of models of columns, on Adult",
        settings={
            f"{records:,} records, ε = {epsilon:g}, {model}, C = {clip:g}": {
                "model": model,
                "records": records,
                "epsilon": epsilon,
                "clip": clip,
            }
            for records, epsilon in TASKS
            for model in ("logistic", "network")
            for clip in CLIPS
        },
        seeds=range(5),
        measure=measure,
        columns=(Column("accuracy", "{:.2%}"), Column("loss", "{:.3f}")),
        expected="a clip of 1 is right as often as one of 0.1, with a smaller loss",
        minutes=0.1,
    )


def measure(setting: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Train by the recipe, and score the published average on the test records."""
    found = load("adult")
    count = setting["records"]
    x, y = found.train.tensors()
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:count]
    x_test, y_test = found.test.tensors()
    torch.manual_seed(seed)
    model = network(setting["model"])
    recipe = recipes.choose(
        population=count,
        epsilon=setting["epsilon"],
        weights=sum(weight.numel() for weight in model.parameters()),
        columns=True,
        clip=setting["clip"],
    )
    private = steppe.make_private(
        model,
        recipe.optimizer(model),
        (x[chosen], y[chosen]),
        recipe.plan(),
        loss=F.cross_entropy,
        source=steppe.SeededSource(seed),
    )
    published = recipes.published(model, recipe.steps)
    for batch in private:
        private.step(batch)
        published.update(model)
    with published.applied(model), torch.no_grad():
        answers = model(x_test)
    right = answers.argmax(1) == y_test
    return {
        "accuracy": float(right.double().mean()),
        "loss": float(F.cross_entropy(answers, y_test)),
        "epsilon": private.plan.epsilon_spent(private.steps_done),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then show everything; returns the exit status."""
    return stored.show(experiment(), "columns", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
