"""Table 3 and Figures 1 (right) and 4: accuracy, stability and wideness of DP-SWA on networks."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from steppe.averaging import SWA
from steppe.flatness import Surface, interpolate, percent_gain, random_rays
from steppe.papers.dp_swa.linear import PAPER
from steppe.papers.dp_swa.logistic import COLUMNS
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve, panels
from steppe.papers.pictures import accuracy, fit, in_parts, load
from steppe.papers.plans import plan_of
from steppe.private import Private

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POSITIONS = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train once; measure the last iterate and the average of all steps after the warm-up."""
    pictures = load(constants["data"], constants.get("side"))
    plan = plan_of(constants)
    total, averages = plan.total_steps, list[SWA]()
    epoch = total // constants["epochs"]
    moments = {total - i * epoch for i in range(10)}
    last: dict[str, list[float]] = {"SGD": [], "SWA": []}

    def after_step(private: Private) -> None:
        model, done = private.model, private.steps_done
        if not averages:
            averages.append(SWA(model, warmup=constants["warmup"], steps=total))
        averages[0].update(model)
        if done in moments and averages[0].covers:
            last["SGD"].append(100 * accuracy(model, pictures.test))
            with averages[0].applied(model):
                last["SWA"].append(100 * accuracy(model, pictures.test))

    fitted = fit(
        pictures,
        constants["model"],
        plan,
        seed,
        rate=constants["rate"],
        evaluations=1,
        after_step=after_step,
    )
    averaged = copy.deepcopy(fitted.model)
    averages[0].copy_to(averaged)
    # A part of the test set is enough for a hundred looks around.
    few = in_parts((pictures.test[0][:2000], pictures.test[1][:2000]))
    rays = [
        random_rays(
            Surface(model, F.cross_entropy, few),
            torch.Generator().manual_seed(seed),
            constants["distances"],
        )
        for model in (fitted.model, averaged)
    ]
    line = interpolate(fitted.model, averaged, F.cross_entropy, {"test": few}, _POSITIONS)
    return {
        **fitted.measured(),
        "SGD": last["SGD"][-1],
        "SWA": last["SWA"][-1],
        "gain": last["SWA"][-1] - last["SGD"][-1],
        "variance SGD": statistics.variance(last["SGD"]),
        "variance SWA": statistics.variance(last["SWA"]),
        "wider by %": percent_gain(*rays),
        "rays": {"SGD": rays[0].means, "SWA": rays[1].means},
        "line": {"positions": _POSITIONS, "loss": [m.loss for m in line.measured["test"]]},
        "last": last,
    }


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Accuracy along random rays, and the loss on the line from DP-SGD (0) to DP-SWA (1)."""
    figure, (left, right) = panels(2)
    for i, (setting, own) in enumerate(by_setting(runs).items()):
        for name, style in (("SGD", ":"), ("SWA", "-")):
            means = [100 * mean for mean in mean_curve(run.measured["rays"][name] for run in own)]
            distances = own[0].constants["distances"]
            left.plot(distances, means, style, color=f"C{i}", label=f"DP-{name}, {setting}")
        losses = mean_curve(run.measured["line"]["loss"] for run in own)
        right.plot(own[0].measured["line"]["positions"], losses, ".-", label=setting)
    left.set(xlabel="distance from the solution", ylabel="accuracy (%)", title="Ten random rays")
    right.set(xlabel="from DP-SGD (0) to DP-SWA (1)", ylabel="test loss", title="On the line")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    return figure


_FASHION: Constants = {
    "data": "fashion-mnist",
    "model": "cnn-tanh-26k",
    "population": 60_000,
    "batch": 512,
    "epochs": 20,
    "rate": 2.0,
    "clip": 1.0,
    "delta": 1e-5,
    "warmup": 0.7,
    "distances": [1.0, 2.0, 4.0, 6.0, 8.0],
}
# Shortened, with a network that one core can train, on the 28×28 pixels it takes.
_CIFAR: Constants = {
    **_FASHION,
    "data": "cifar10",
    "side": 28,
    "population": 50_000,
    "batch": 1024,
    "rate": 3.0,
}


def _experiment(
    name: str, item: str, base: Constants, seeds: Sequence[int], minutes: float
) -> Experiment:
    return Experiment(
        name=name,
        paper=PAPER,
        item=item,
        settings={f"ε = {e:g}": {**base, "epsilon": e} for e in (1.0, 8.0)},
        seeds=seeds,
        measure=measure,
        columns=(*COLUMNS, Column("wider by %", "{:.1f}", "%gain along rays")),
        judged=("gain", "wider by %"),
        expected="0.1 to 2 points more accuracy, a smaller variance, a positive %gain",
        minutes=minutes,
        figure=_figure,
    )


FASHION = _experiment(
    "dp-swa-fashion",
    "Table 3 and Figures 1 (right) and 4, on Fashion-MNIST with a CNN of 26k weights",
    _FASHION,
    (0, 1, 2),
    6.0,
)
CIFAR = _experiment(
    "dp-swa-cifar",
    "Table 3 on CIFAR-10, shortened: 20 epochs in batches of 1024, a CNN of 28k weights",
    _CIFAR,
    (0, 1),
    6.0,
)
