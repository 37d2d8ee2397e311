"""Networks for tables by recipe: on Adult beside logistic, on diamonds beside linear regression.

`python -m benchmarks.tables` trains every model by its recipe and stores every (setting, seed) in
`benchmarks/results/tables.json`. The prices of 53,940 diamonds come from the package plotnine,
which pip downloads; a random 8,000 of them are kept out of training.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from benchmarks import stored
from steppe import data, models
from steppe.data.formats import adult
from steppe.data.sources import Package
from steppe.papers.experiment import Column, Experiment
from steppe.records import as_records
from steppe.training import recipes
from steppe.training.losses import curvature

MODELS = ("one layer", "mlp", "embedding-mlp")
# How many records, and their ε.
TASKS = (("adult", 32_561, 2.0), ("adult", 2_000, 1.0), ("diamonds", 45_940, 2.0))
_PRICES = (0.0, 20_000.0)
_WHEEL = Package(
    client="pip",
    name="plotnine",
    version="0.15.9",
    sha256="36f4526235b3ddd9ea379dd677093ea2ee1b58ab98adec1bde891930283448cd",
    megabytes=2,
)
_CATEGORIES = {
    "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
    "color": tuple("DEFGHIJ"),
    "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
}
_BOUNDS = {"carat": (0, 5), "depth": (40, 80), "table": (40, 100)} | dict.fromkeys("xyz", (0, 11))


class Parts(NamedTuple):
    """A table in two parts, and its columns of categories."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    blocks: list[list[int]]


@cache
def diamonds() -> tuple[Tensor, Tensor, list[list[int]]]:
    """Inputs, prices scaled to [−1, 1] by declared bounds, and the columns of categories."""
    with tempfile.TemporaryDirectory() as folder:
        (wheel,) = _WHEEL.download(Path(folder), progress=True)
        with zipfile.ZipFile(wheel) as archive:
            table = archive.extract("plotnine/data/diamonds.csv", folder)
        options = {"bounds": _BOUNDS, "categories": _CATEGORIES, "numbers": True}
        x, y = data.read(table, target="price", **options).train.tensors()
    low, high = _PRICES
    # carat, cut, color, clarity, depth, table, x, y, z
    return x, 2 * (y - low) / (high - low) - 1, [[1, 5], [6, 7], [13, 8]]


def parts_of(name: str, records: int, seed: int) -> Parts:
    """A task's records; which of them are trained on depends on the seed."""
    generator = torch.Generator().manual_seed(seed)
    if name == "adult":
        found = data.load("adult")
        x, y = found.train.tensors()
        chosen = torch.randperm(len(y), generator=generator)[:records]
        return Parts(x[chosen], y[chosen], *found.test.tensors(), _adult_blocks())
    x, y, blocks = diamonds()
    order = torch.randperm(len(y), generator=generator)
    train, test = order[:records], order[records:]
    return Parts(x[train], y[train], x[test], y[test], blocks)


def _adult_blocks() -> list[list[int]]:
    found, at = [], 0
    for column in adult.COLUMNS:
        size = 1 if isinstance(column, adult.Number) else len(column.all_values)
        if size > 1:
            found.append([at, size])
        at += size
    return found


def network(name: str, parts: Parts) -> nn.Module:
    """A model by its name; one layer is a logistic or a linear model."""
    classes = None if parts.y.is_floating_point() else 2
    sizes: dict[str, Any] = {"features": parts.x.shape[1]}
    if name == "one layer":
        name = "linear" if classes is None else "logistic"
    if name != "linear":
        sizes["classes"] = classes
    if name == "embedding-mlp":
        sizes["blocks"] = parts.blocks
    return models.create(name, **sizes)


def experiment() -> Experiment:
    """Every task and model."""
    return Experiment(
        name="tables",
        paper="Strong defaults",
        item="networks for tables, by recipe",
        settings={
            f"{task}, {records:,} records, ε = {epsilon:g}, {model}": {
                "task": task,
                "records": records,
                "epsilon": epsilon,
                "model": model,
            }
            for task, records, epsilon in TASKS
            for model in MODELS
        },
        seeds=range(5),
        measure=measure,
        columns=(Column("score", "{:.2%}"), Column("loss", "{:.4f}")),
        expected="a network explains much more of the prices than a linear model, and is as right "
        "as a logistic one on Adult",
        minutes=0.2,
    )


def measure(setting: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Train by the recipe, and score the published average on the test records.

    Returns:
        `score`: the accuracy, or the share of the variance of the prices that is explained.
    """
    parts = parts_of(setting["task"], setting["records"], seed)
    torch.manual_seed(seed)
    model = network(setting["model"], parts)
    prices = parts.y.is_floating_point()
    loss = F.mse_loss if prices else F.cross_entropy
    recipe = recipes.choose(
        population=setting["records"],
        epsilon=setting["epsilon"],
        weights=sum(weight.numel() for weight in model.parameters()),
        columns=True,
        curvature=curvature(loss, model, as_records((parts.x, parts.y))),
    )
    private = steppe.make_private(
        model,
        recipe.optimizer(model),
        (parts.x, parts.y),
        recipe.plan(),
        loss=loss,
        source=steppe.SeededSource(seed),
    )
    published = recipes.published(model, recipe.steps)
    for batch in private:
        private.step(batch)
        published.update(model)
    with published.applied(model), torch.no_grad():
        answers = model(parts.x_test)
    found = float(loss(answers, parts.y_test))
    if prices:
        score = 1 - found / float(parts.y_test.var(correction=0))
    else:
        score = float((answers.argmax(1) == parts.y_test).double().mean())
    return {
        "score": score,
        "loss": found,
        "epsilon": private.plan.epsilon_spent(private.steps_done),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then show everything; returns the exit status."""
    return stored.show(experiment(), "tables", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
