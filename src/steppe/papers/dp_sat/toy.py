"""Figures 1 and 4: noise does more harm in a sharp minimum, on a loss over the plane."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steppe.flatness import TwoMinima, noisy_descent
from steppe.papers.dp_sat.recipe import PAPER
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Descend with noise from one start; the noise of a seed is the same for every start."""
    path = noisy_descent(
        tuple(constants["start"]),
        torch.Generator().manual_seed(seed),
        steps=constants["steps"],
        rate=constants["rate"],
        noise=constants["noise"],
    )
    return {
        "gradient change": statistics.fmean(path.gradient_differences),
        "sharpness": statistics.fmean(path.sharpness),
        "final loss": path.losses[-1],
        "points": path.points,
        "losses": path.losses,
        "sharpnesses": path.sharpness,
        "gradient changes": path.gradient_differences,
    }


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """The paths of the first seed on the ground, and what noise does along them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = min(run.seed for run in runs)
    drawn = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(drawn)
    ground, noise = drawn.subplots(1, 2)
    ticks = torch.linspace(0, 10, 201, dtype=torch.float64)
    heights = TwoMinima()(torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1))
    ground.contourf(ticks.tolist(), ticks.tolist(), heights.tolist(), levels=30, cmap="Greys")
    for i, run in enumerate(run for run in runs if run.seed == first):
        color, found = f"C{i}", run.measured
        ground.plot(*zip(*found["points"], strict=True), ".-", color=color, label=run.setting)
        noise.semilogy(found["sharpnesses"], "--", color=color, label=f"‖H‖₂, {run.setting}")
        noise.semilogy(found["gradient changes"], color=color, label=f"Δ, {run.setting}")
    ground.set(title="A flat and a sharp minimum", xlabel="w₁", ylabel="w₂")
    noise.set(title="Change Δ of the next gradient by noise", xlabel="step", ylim=(1e-5, 10))
    for axes in (ground, noise):
        axes.legend(fontsize="small")
    return drawn


def _start(x: float, y: float) -> Constants:
    return {"start": [x, y], "steps": 100, "rate": 0.1, "noise": 0.5}


TOY = Experiment(
    name="dp-sat-toy",
    paper=PAPER,
    item="Figures 1 and 4: a flat and a sharp minimum under noise (formula corrected)",
    settings={"flat": _start(3.5, 2.5), "sharp": _start(8.5, 7.5)},
    seeds=tuple(range(5)),
    measure=measure,
    columns=(Column("gradient change"), Column("sharpness"), Column("final loss")),
    baseline="flat",
    judged=("gradient change", "sharpness", "final loss"),
    expected="gradients change more by noise where the Hessian is large",
    minutes=0.01,
    figure=figure,
)
