"""Strong defaults against the bare Opacus example: accuracy at the same ε, five seeds.

Patch features are what `steppe train` takes for pictures; their seed is that of the run. The others
are rows to compare with.

`python -m benchmarks.defaults` runs what is missing, stores every (setting, seed) as it ends in
`benchmarks/results/defaults.json`, says how long is left, and ends with a table and a picture.
`--seeds 0 --settings "mnist, ε = 2, scattering"` runs a part; two processes may run at once.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import steppe
from benchmarks import patch_features, stored
from steppe import models
from steppe.averaging import Averages
from steppe.data import load
from steppe.papers import pictures
from steppe.papers.experiment import Column, Experiment, ExperimentRun
from steppe.papers.summary import aligned
from steppe.records import as_records
from steppe.training import recipes

COMPARED = ("mnist", "fashion-mnist")  # with networks and Opacus' example
BUDGETS = {
    "cifar10": (1.0, 2.0, 3.0, 8.0),
    "fashion-mnist": (1.0, 2.0, 3.0),
    patch_features.COARSE: (1.0, 3.0, 8.0),
    "mnist": (1.0, 2.0, 3.0),
}
DELTA = 1e-5
POPULATION = 60_000
NETWORK = "cnn-relu-26k"
# The defaults of Opacus' examples/mnist.py; its noise is found by RDP for the ε of the row.
OPACUS = {"batch": 64, "epochs": 10, "clip": 1.0, "rate": 0.1, "momentum": 0.0, "radius": None}
BASELINE = "Opacus example"
PATCHES = "patches"
DRAWN = (PATCHES, "scattering")
RECIPES = (PATCHES, "scattering", "same network", BASELINE)
# A head is two small products a record: parts that stay near the processor are fastest.
_HEAD_AT_ONCE = 512


def experiment() -> Experiment:
    """All settings with the constants that the recipes choose today."""
    settings = {
        f"{data}, ε = {epsilon:g}, {PATCHES}": of_patches(data, epsilon)
        for data, budgets in BUDGETS.items()
        for epsilon in budgets
    } | {
        f"{data}, ε = {epsilon:g}, {recipe}": constants(data, epsilon, recipe)
        for recipe in RECIPES[1:]
        for epsilon in (2.0, 1.0, 3.0)
        for data in COMPARED
    }
    return Experiment(
        name="defaults",
        paper="Strong defaults",
        item="nothing but data, model and ε, against the bare Opacus MNIST example",
        settings=settings,
        seeds=range(5),
        measure=measure,
        columns=(Column("accuracy", "{:.2%}"), Column("last", "{:.2%}")),
        expected="patches at ε = 1, 2, 3: CIFAR-10 73.5, 76.0, 77.0 %, Fashion-MNIST 89.5, 90.5, "
        "91.0 %, MNIST 98.1, 98.4, 98.5 %",
        minutes=4.0,
    )


def of_patches(data: str, epsilon: float) -> dict[str, Any]:
    """Everything that decides a run on patch features but its seed."""
    population, colours, classes = patch_features.FACTS[data]
    side = 32 if colours == 3 else 28
    mirror = patch_features.mirror(data)
    model = models.PatchesLinear(side, classes, colours, mirror)
    chosen = recipes.for_model(model, population=population, epsilon=epsilon, delta=DELTA)
    return {
        "data": data,
        "epsilon": epsilon,
        "delta": DELTA,
        "recipe": PATCHES,
        "model": "patches-linear",
        "mirror": mirror,
        "classes": classes,
        "sigma by": "PLD",
        "steps": chosen.steps,
        "batch": chosen.batch_size,
        "clip": chosen.clip,
        "rate": chosen.rate,
        "momentum": chosen.momentum,
        "radius": None,
    }


def constants(data: str, epsilon: float, recipe: str) -> dict[str, Any]:
    """Everything that decides a run but its seed."""
    common = {"data": data, "epsilon": epsilon, "delta": DELTA, "recipe": recipe}
    if recipe == BASELINE:
        steps = OPACUS["epochs"] * POPULATION // OPACUS["batch"]
        return {**common, "model": NETWORK, "sigma by": "RDP", "steps": steps, **OPACUS}
    model = "scattering-linear" if recipe == "scattering" else NETWORK
    chosen = recipes.for_model(
        models.create(model), population=POPULATION, epsilon=epsilon, delta=DELTA
    )
    return {
        **common,
        "model": model,
        "sigma by": "PLD",
        "steps": chosen.steps,
        "batch": chosen.batch_size,
        "clip": chosen.clip,
        "rate": chosen.rate,
        "momentum": chosen.momentum,
        "radius": getattr(chosen.point, "radius", None),
    }


def measure(setting: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Train once and score every model that the run keeps."""
    torch.manual_seed(seed)
    train: Any
    model: nn.Module
    if setting["recipe"] == PATCHES:
        train, test = patch_features.features(setting["data"], seed)
        model = nn.Linear(test[0].shape[1], setting["classes"], bias=False)
        nn.init.zeros_(model.weight)
    elif setting["recipe"] == "scattering":
        train, test = scattered(setting["data"])
        model = models.create(setting["model"]).head
    else:
        found = pictures.load(setting["data"])
        train, test = found.train, found.test
        model = models.create(setting["model"])
    begin = time.perf_counter()
    private = steppe.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=setting["rate"], momentum=setting["momentum"]),
        train,
        plan_of(setting, len(as_records(train))),
        loss=F.cross_entropy,
        source=steppe.SeededSource(seed),
        physical_batch=_HEAD_AT_ONCE if isinstance(model, nn.Linear) else pictures.PHYSICAL_BATCH,
    )
    kept = Averages(recipes.averages(model, setting["steps"]))
    for batch in tqdm(private, desc=f"{setting['recipe']}, seed {seed}", disable=None, leave=False):
        private.step(batch)
        kept.update(model)
    scores = {"last": pictures.accuracy(model, test)}
    for average in kept:
        with average.applied(model):
            scores[type(average).__name__] = pictures.accuracy(model, test)
    last = (BASELINE, PATCHES)
    published = "last" if setting["recipe"] in last else recipes.PUBLISHED.__name__
    return {
        "accuracy": scores[published],
        **scores,
        "epsilon": private.plan.epsilon_spent(private.steps_done),
        "sigma": private.plan.sigma,
        "training seconds": round(time.perf_counter() - begin, 1),
    }


def plan_of(setting: Mapping[str, Any], population: int) -> steppe.Plan:
    """The plan of a setting; the baseline's noise is calibrated as Opacus does it."""
    radius = setting["radius"]
    common: dict[str, Any] = {
        "delta": setting["delta"],
        "population": population,
        "batch_size": setting["batch"],
        "steps": setting["steps"],
        "clip": steppe.Flat(setting["clip"]),
        "point": steppe.Here() if radius is None else steppe.SAT(radius),
    }
    if setting["sigma by"] == "PLD":
        return steppe.Plan(epsilon=setting["epsilon"], **common)
    from opacus.accountants.utils import get_noise_multiplier

    sigma = get_noise_multiplier(
        target_epsilon=setting["epsilon"],
        target_delta=setting["delta"],
        sample_rate=setting["batch"] / population,
        steps=setting["steps"],
        accountant="rdp",
    )
    return steppe.Plan(noise_multiplier=sigma, **common)


@lru_cache(maxsize=2)
def scattered(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Scattering features and labels of both parts, computed once a process."""
    found, front = load(name), models.ScatteringLinear()
    (x, y), (x_test, y_test) = found.train.tensors(), found.test.tensors()
    return (front.features(x), y), (front.features(x_test), y_test)


def table(runs: Sequence[ExperimentRun]) -> str:
    """Accuracy in % as mean ± standard deviation over seeds: a row a data set and ε."""
    rows = [["data", "ε", *RECIPES]]
    for data, budgets in BUDGETS.items():
        for epsilon in budgets:
            cells = [cell(runs, data, epsilon, recipe) for recipe in RECIPES]
            rows.append([data, f"{epsilon:g}", *cells])
    return aligned(rows)


def percents(
    runs: Sequence[ExperimentRun], data: str, epsilon: float, recipe: str, key: str = "accuracy"
) -> list[float]:
    """A score of every seed, in %."""
    return [
        100 * run.measured[key]
        for run in runs
        if (run.constants["data"], run.constants["epsilon"], run.constants["recipe"])
        == (data, epsilon, recipe)
    ]


def cell(runs: Sequence[ExperimentRun], data: str, epsilon: float, recipe: str) -> str:
    """One entry of the table, with the number of seeds where they are not five."""
    found = percents(runs, data, epsilon, recipe)
    if not found:
        return "–"
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    seeds = "" if len(found) == 5 else f" ({len(found)} of 5 seeds)"
    return f"{statistics.fmean(found):.2f}{spread}{seeds}"


def draw(runs: Sequence[ExperimentRun], out: Path) -> None:
    """The README's picture: the default, scattering, and published figures."""
    from benchmarks.published import FIGURES
    from steppe.report.picture import AccuracyDot
    from steppe.report.picture import draw as drawn

    dots = [
        AccuracyDot(
            data=run.constants["data"],
            recipe=run.constants["recipe"],
            epsilon=run.constants["epsilon"],
            seed=run.seed,
            accuracy=run.measured["accuracy"],
        )
        for run in runs
        if run.constants["recipe"] in DRAWN
    ]
    out.write_text(drawn(dots, published=FIGURES))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then show everything.

    Returns:
        0, or 3 where the time was used up first.
    """
    results, left = stored.run(experiment(), "defaults", __doc__, argv)
    runs = results.current()
    print(table(runs))
    if any(run.constants["recipe"] in DRAWN for run in runs):
        draw(runs, results.path.with_suffix(".svg"))
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
