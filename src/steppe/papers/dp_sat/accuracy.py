"""Tables 2, 9, 11 and 12: accuracy at equal (ε, δ); Figure 13: how much the radius matters."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steppe.papers.dp_sat.measured import compared, measure, methods
from steppe.papers.dp_sat.recipe import PAPER, method, train
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import accuracy_curves, against

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACCURACY = Column("accuracy", "{:.2%}")
_COST = (Column("epsilon", "{:.3f}", "ε spent"), Column("sigma", "{:.3f}", "σ"))


def _measure_large(constants: Constants, seed: int) -> Mapping[str, Any]:
    return train(constants, seed, evaluations=3, physical_batch=64).measured()


def _comparison(data: str, title: str, epsilon: float, seeds: Sequence[int]) -> Experiment:
    return Experiment(
        name=f"dp-sat-{data.removesuffix('-mnist')}-{epsilon:g}",
        paper=PAPER,
        item=f"Tables 2, 9 and 12, {title} at ε = {epsilon:g}, with the 26k tanh CNN",
        settings=methods(data, epsilon),
        seeds=seeds,
        measure=measure,
        columns=(_ACCURACY, Column("averaged", "{:.2%}", "EMA"), *_COST),
        baseline="DP-SGD",
        judged=("accuracy", "averaged"),
        expected="DP-SAT above DP-SGD by 0.1 to 1.4 points, DP-SAM with the paper's steps below",
        minutes=8.0,
        figure=accuracy_curves,
    )


def _radius_figure(runs: Sequence[ExperimentRun]) -> Figure:
    return against(runs, "radius", "accuracy", "point", y="accuracy", title="Fashion-MNIST, ε = 3")


_BUDGETS = (1.0, 3.0, 2.0)
FASHION = tuple(_comparison("fashion-mnist", "Fashion-MNIST", eps, (0, 1, 2)) for eps in _BUDGETS)
MNIST = tuple(_comparison("mnist", "MNIST", eps, (0, 1)) for eps in _BUDGETS)

_fashion = functools.partial(compared, "fashion-mnist", 3.0)
RADIUS = Experiment(
    name="dp-sat-radius",
    paper=PAPER,
    item="Figure 13: sensitivity to ρ, on Fashion-MNIST at ε = 3 instead of CIFAR-10",
    settings={
        **{f"DP-SAT, ρ = {r}": _fashion("SAT", radius=r) for r in (0.1, 0.3, 0.01, 1.0)},
        **{f"DP-SAT-Momentum, ρ = {r}": _fashion("SATMomentum", radius=r) for r in (0.3, 1.0)},
        # Shared with the table at ε = 3.
        "DP-SAT, ρ = 0.03": _fashion("SAT", radius=0.03),
        "DP-SAT-Momentum, ρ = 0.1": _fashion("SATMomentum", radius=0.1),
    },
    seeds=(0, 1),
    measure=measure,
    columns=(_ACCURACY,),
    expected="too small a radius changes nothing, too large a one costs accuracy",
    minutes=8.0,
    figure=_radius_figure,
)

_ADAM: dict[str, Any] = {"optimizer": "Adam", "rate": 0.0002}
OPTIMIZERS = Experiment(
    name="dp-sat-optimizers",
    paper=PAPER,
    item="Table 11: SGD without momentum, and Adam, on Fashion-MNIST at ε = 3",
    settings={
        "DP-SGD": _fashion(),
        "DP-SGD, no momentum": _fashion(momentum=0.0),
        "DP-Adam": _fashion(**_ADAM),
        "DP-SAT": _fashion("SAT", radius=0.03),
        "DP-SAT, Adam": _fashion("SAT", radius=0.03, **_ADAM),
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=(_ACCURACY, Column("averaged", "{:.2%}", "EMA")),
    baseline="DP-SGD",
    judged=("accuracy", "averaged"),
    expected="no momentum 6 points below DP-SGD, Adam equal; DP-SAT above with either optimizer",
    minutes=4.0,
    figure=accuracy_curves,
)


_LARGE = {"model": "dpnas-mnist", "epochs": 3}
DPNAS = Experiment(
    name="dp-sat-dpnas",
    paper=PAPER,
    item="Table 2, MNIST at ε = 3 with DPNASNet-MNIST, 3 of the 40 epochs: an hour of one core",
    settings={
        "DP-SAT": {**method("mnist", 3.0, "SAT", radius=0.03), **_LARGE},
        "DP-SGD": {**method("mnist", 3.0), **_LARGE},
    },
    seeds=(0,),
    measure=_measure_large,
    columns=(_ACCURACY, *_COST, Column("records a second", "{:.0f}")),
    baseline="DP-SGD",
    judged=("accuracy",),
    expected="the paper, after 40 epochs: DP-SGD 98.70 %, DP-SAT 98.93 %",
    minutes=30.0,
    figure=accuracy_curves,
)
