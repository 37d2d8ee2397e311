"""Table 2 on CIFAR-10 with the paper's CNN of 550k weights, and all averages of the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steppe.averaging import EMA, SWA, Averages, PolynomialDecay, Window
from steppe.papers.dp_sat.recipe import PAPER, method, train
from steppe.papers.experiment import Column, Constants, Experiment
from steppe.papers.figures import accuracy_curves
from steppe.papers.pictures import accuracy, load
from steppe.private import Private

_AVERAGES = ("EMA", "SWA", "UPA", "PDA")


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train once; test the last weights and their averages."""
    averages: list[Averages] = []

    def after_step(private: Private) -> None:
        model, steps = private.model, private.plan.total_steps
        if not averages:
            chosen = [
                EMA(model, constants["average"]),
                SWA(model, warmup=constants["warmup"], steps=steps),
                Window(model, k=constants["window"]),
                PolynomialDecay(model, constants["gamma"]),
            ]
            averages.append(Averages(chosen))
        averages[0].update(model)

    fitted = train(constants, seed, after_step=after_step, physical_batch=250)
    found = {}
    for name, average in zip(_AVERAGES, averages[0], strict=True):
        with average.applied(fitted.model):
            found[name] = accuracy(fitted.model, load(constants["data"]).test)
    return {**fitted.measured(), **found}


def _setting(point: str = "Here", **more: Any) -> Constants:
    return {
        **method("cifar10", 3.0, point, **more),
        "model": "cnn-selu-cifar",
        "population": 50_000,
        "epochs": 30,
        "average": 0.99,
        "warmup": 0.7,
        "window": 50,
        "gamma": 10.0,
    }


CIFAR = Experiment(
    name="dp-sat-cifar",
    paper=PAPER,
    item="Tables 2 and 9, CIFAR-10 at ε = 3 with the paper's CNN of 550k weights",
    settings={
        "DP-SGD": _setting(),
        "DP-SAT": _setting("SAT", radius=0.05),
        "DP-SAT-Momentum": _setting("SATMomentum", radius=0.5),
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=(Column("accuracy", "{:.2%}"), *(Column(name, "{:.2%}") for name in _AVERAGES)),
    baseline="DP-SGD",
    judged=("accuracy",),
    expected="DP-SGD 61.84 %, DP-SAT 63.51 % (ρ = 0.05)",
    minutes=50.0,
    figure=accuracy_curves,
)
