"""Figures 5.14 to 5.17 and A.2: CIFAR-10 with the network of Opacus' example, shortened."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import accuracy_curves, against
from steppe.papers.pictures import fit, load
from steppe.papers.plans import plan_of
from steppe.papers.weight_decay.paper import PAPER
from steppe.private import Private

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The constants that the report does not print are those of Opacus' example: lot, rate, momentum,
# and the cosine by which the rate falls. Its 90 epochs are cut to 6.
_RECIPE: Constants = {
    "data": "cifar10",
    "model": "cnn-opacus-cifar",
    "population": 50_000,
    "batch": 2000,
    "rate": 0.1,
    "momentum": 0.9,
    "epochs": 6,
    "delta": 1e-5,
}
_AFTER, _BEFORE = "decay after the clip", "L2 before the clip"
_DECAYS = (1e-2, 1e-4, 1e-1, 1e-3, 1e-5, 1e-7)
_CLIPS = (10.0, 0.2, 2.0, 1.0, 5.0)
_SIGMAS = (1.5, 7.5, 3.0, 15.0)


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train and test once, with a learning rate that falls like a cosine from epoch to epoch."""
    before = constants["where"] == _BEFORE
    plan = plan_of(constants, l2=constants["decay"] if before else 0.0)
    epochs, rate = constants["epochs"], constants["rate"]

    def after_step(private: Private) -> None:
        epoch = private.steps_done * epochs // plan.total_steps
        for group in private.optimizer.param_groups:
            group["lr"] = rate * (1 + math.cos(math.pi * epoch / (epochs + 1))) / 2

    fitted = fit(
        load(constants["data"]),
        constants["model"],
        plan,
        seed,
        rate=rate,
        momentum=constants["momentum"],
        decay=0.0 if before else constants["decay"],
        evaluations=min(epochs, 6),
        physical_batch=250,
        after_step=after_step,
    )
    weights = torch.nn.utils.parameters_to_vector(fitted.model.parameters())
    return {**fitted.measured(), "length": torch.linalg.vector_norm(weights).item()}


def _setting(where: str, clip: float = 10.0, decay: float = 1e-4, sigma: float = 1.5) -> Constants:
    return {**_RECIPE, "where": where, "clip": clip, "decay": decay, "sigma": sigma}


def _sweep(
    name: str, item: str, symbol: str, constant: str, values: Sequence[float], expected: str
) -> Experiment:
    def name_of(value: float, where: str) -> str:
        return f"{symbol} = {value:g}, {where}"

    return Experiment(
        name=f"weight-decay-cifar-{name}",
        paper=PAPER,
        item=item,
        settings={
            name_of(value, where): _setting(where, **{constant: value})
            for value in values
            for where in (_AFTER, _BEFORE)
        },
        seeds=(0, 1, 2),
        measure=measure,
        columns=_COLUMNS,
        judged=("accuracy",),
        rivals={name_of(value, _BEFORE): name_of(value, _AFTER) for value in sorted(values)},
        expected=expected,
        minutes=6.0,
        figure=_figure_of(constant),
    )


def _figure_of(constant: str) -> Callable[[Sequence[ExperimentRun]], Figure]:
    def figure(runs: Sequence[ExperimentRun]) -> Figure:
        return against(
            runs, constant, "accuracy", "where", y="accuracy", title="CIFAR-10, 6 epochs"
        )

    return figure


_COLUMNS = (
    Column("accuracy", "{:.2%}"),
    Column("length", "{:.3g}", "‖θ‖"),
    Column("epsilon", "{:.3f}", "ε spent"),
)
BASELINE = Experiment(
    name="weight-decay-cifar-baseline",
    paper=PAPER,
    item="Figure 5.14: R = 10, λ = 1e-4, σ = 1.5, 6 of the 90 epochs",
    settings={where: _setting(where) for where in (_AFTER, _BEFORE)},
    seeds=(0, 1, 2),
    measure=measure,
    columns=_COLUMNS,
    baseline=_AFTER,
    judged=("accuracy",),
    expected="65.75 % after the clip and 67.37 % before it, after 90 epochs",
    minutes=6.0,
    figure=accuracy_curves,
)
CLIP = _sweep(
    "clip",
    "Figure 5.15: R from 0.2 to 10 at λ = 1e-4, 6 of the 90 epochs",
    "R",
    "clip",
    _CLIPS,
    "both lose as R falls, decay before the clip less",
)
DECAY = _sweep(
    "decay",
    "Figures 5.16 and 5.17: λ from 1e-7 to 0.1 at R = 10, 6 of the 90 epochs",
    "λ",
    "decay",
    _DECAYS,
    "after the clip accuracy falls from λ = 0.001 on; before it none is lost",
)
NOISE = _sweep(
    "noise",
    "Figure A.2: σ from 1.5 to 15 at R = 10 and λ = 1e-4, 6 of the 90 epochs",
    "σ",
    "sigma",
    _SIGMAS,
    "both lose as σ grows, and do not differ",
)
