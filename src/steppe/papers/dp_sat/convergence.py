"""Figures 2, 14 and 15: training loss and test accuracy over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from steppe.papers.dp_sat.recipe import PAPER, method, train
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve, panels
from steppe.papers.pictures import Batch, in_parts, load
from steppe.private import Private
from steppe.utils.module_modes import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOMENTS = 20


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train once; the loss of some training pictures and the test accuracy at equal distances.

    The data sets are public, so that training pictures may be looked at.
    """
    pictures = load(constants["data"])
    some = (pictures.train[0][: constants["records"]], pictures.train[1][: constants["records"]])
    losses: list[float] = []
    moments: set[int] = set()

    def after_step(private: Private) -> None:
        total = private.plan.total_steps
        if not moments:
            moments.update(round(total * (i + 1) / _MOMENTS) for i in range(_MOMENTS))
        if private.steps_done in moments:
            losses.append(_loss(private.model, some))

    fitted = train(constants, seed, evaluations=_MOMENTS, after_step=after_step)
    return {**fitted.measured(), "loss": losses[-1], "losses": losses}


@torch.no_grad()
def _loss(model: nn.Module, records: Batch) -> float:
    with evaluating(model):
        total = sum(
            float(F.cross_entropy(model(x), y, reduction="sum")) for x, y in in_parts(records)
        )
    return total / len(records[1])


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Training loss and test accuracy, the mean over seeds; DP-SAT dashed."""
    drawn, (left, right) = panels(2)
    colours: dict[str, str] = {}
    for setting, own in by_setting(runs).items():
        budget = setting.removeprefix("DP-SAT, ").removeprefix("DP-SGD, ")
        colour = colours.setdefault(budget, f"C{len(colours)}")
        style = "--" if setting.startswith("DP-SAT") else "-"
        epochs = own[0].measured["epochs"]
        losses = mean_curve(run.measured["losses"] for run in own)
        accuracies = mean_curve([100 * a for a in run.measured["accuracies"]] for run in own)
        left.plot(epochs, losses, style, color=colour, label=setting)
        right.plot(epochs, accuracies, style, color=colour, label=setting)
    left.set(xlabel="epoch", ylabel="training loss")
    right.set(xlabel="epoch", ylabel="test accuracy (%)")
    left.legend(fontsize="x-small")
    return drawn


def _setting(data: str, epsilon: float, point: str = "Here", **more: Any) -> Constants:
    return {**method(data, epsilon, point, **more), "records": 5000}


def _silent(data: str, **more: Any) -> Constants:
    """Without noise. The plan needs a σ, which is not added."""
    return {**_setting(data, 1.0), "epsilon": None, "sigma": 1.0, "noise": "none", **more}


def _experiment(
    name: str, item: str, data: str, budgets: Sequence[float], more: Mapping[str, Constants]
) -> Experiment:
    settings: dict[str, Constants] = {}
    for epsilon in budgets:
        settings[f"DP-SGD, ε = {epsilon:g}"] = _setting(data, epsilon)
        settings[f"DP-SAT, ε = {epsilon:g}"] = _setting(data, epsilon, "SAT", radius=0.03)
    return Experiment(
        name=name,
        paper=PAPER,
        item=item,
        settings={**settings, **more},
        seeds=(0,),
        measure=measure,
        columns=(Column("loss", "{:.3f}", "training loss"), Column("accuracy", "{:.2%}")),
        expected="DP-SGD keeps a loss well above zero, also without noise; DP-SAT ends lower",
        minutes=4.0,
        figure=figure,
    )


# The paper does not say how its SGD without a clip was tuned; with its rate of 2 it diverges.
_NOT_PRIVATE = {
    "SGD with clip": _silent("fashion-mnist"),
    "SGD, learning rate 0.1": _silent("fashion-mnist", clip=1e6, rate=0.1),
}
FASHION = _experiment(
    "dp-sat-convergence",
    "Figures 2 and 14 on Fashion-MNIST instead of CIFAR-10: training loss and test accuracy",
    "fashion-mnist",
    (3.0, 1.0, 8.0, 2.0),
    _NOT_PRIVATE,
)
MNIST = _experiment(
    "dp-sat-convergence-mnist",
    "Figure 15: training loss and test accuracy on MNIST",
    "mnist",
    (3.0, 1.0, 2.0),
    {},
)
