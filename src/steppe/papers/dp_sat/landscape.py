"""Figures 5 and 11: the loss on a plane of two filter-normalised directions around solutions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from steppe.flatness import Plane, Surface, loss_plane
from steppe.papers.dp_sat.recipe import FEWER_STEPS, PAPER, method, train
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, panels
from steppe.papers.pictures import in_parts, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train once; the mean loss of some test pictures on a square grid around the solution."""
    fitted = train(constants, seed, evaluations=1)
    x, y = load(constants["data"]).test
    some = in_parts((x[: constants["records"]], y[: constants["records"]]))
    surface = Surface(fitted.model, F.cross_entropy, some)
    plane = loss_plane(
        surface,
        torch.Generator().manual_seed(seed),
        constants["radius of plane"],
        constants["points"],
    )
    middle = len(plane.positions) // 2
    centre = plane.losses[middle][middle]
    return {
        **fitted.measured(),
        "centre": centre,
        "rise": statistics.fmean(_edge(plane)) - centre,
        "positions": plane.positions,
        "losses": plane.losses,
    }


def _edge(plane: Plane) -> list[float]:
    """The losses on the border of the square."""
    last = len(plane.positions) - 1
    return [
        loss
        for i, row in enumerate(plane.losses)
        for j, loss in enumerate(row)
        if i in (0, last) or j in (0, last)
    ]


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """One panel a setting, the first seed of each, all with the same levels."""
    first = {setting: own[0].measured for setting, own in by_setting(runs).items()}
    drawn, places = panels(len(first))
    highest = max(max(map(max, found["losses"])) for found in first.values())
    lowest = min(min(map(min, found["losses"])) for found in first.values())
    levels = [lowest + (highest - lowest) * i / 20 for i in range(21)]
    for axes, (setting, found) in zip(places, first.items(), strict=True):
        columns = list(zip(*found["losses"], strict=True))
        contours = axes.contourf(found["positions"], found["positions"], columns, levels=levels)
        axes.plot(0, 0, "w+")
        axes.set_title(f"{setting}: rises by {found['rise']:.2f}")
        drawn.colorbar(contours, ax=axes)
    return drawn


def _setting(point: str = "Here", **more: Any) -> Constants:
    grid = {"records": 2000, "radius of plane": 0.5, "points": 11}
    return {**method("fashion-mnist", 3.0, point, **more), **grid}


def _silent(point: str, **more: Any) -> Constants:
    """Without clip and noise, at a learning rate for that. The plan needs a σ; it is not added."""
    plain = {"epsilon": None, "sigma": 1.0, "noise": "none", "clip": 1e6, "rate": 0.1}
    return {**_setting(point, **more), **plain}


LANDSCAPE = Experiment(
    name="dp-sat-landscape",
    paper=PAPER,
    item="Figures 5 and 11: loss landscapes, Fashion-MNIST at ε = 3",
    settings={
        "DP-SGD": _setting(),
        "DP-SAM": _setting("SAM", radius=0.03, account=FEWER_STEPS),
        "DP-SAT": _setting("SAT", radius=0.03),
        "SGD": _silent("Here"),
        "SAM": _silent("SAM", radius=0.05),
    },
    seeds=(0,),
    measure=measure,
    columns=(
        Column("accuracy", "{:.2%}"),
        Column("centre", "{:.3f}", "test loss"),
        Column("rise", "{:.3f}", "rise at the border"),
    ),
    expected="DP-SAM and DP-SAT rise less than DP-SGD, as SAM rises less than SGD",
    minutes=5.0,
    figure=figure,
)
