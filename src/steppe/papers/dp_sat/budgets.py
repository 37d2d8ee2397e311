"""Figures 7 and 16: how far DP-SAM and DP-SAT are from DP-SGD, by budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.dp_sat.measured import compared, measure
from steppe.papers.dp_sat.recipe import FEWER_STEPS, PAPER
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The most telling first. None leaves the noise out.
_BUDGETS = (3.0, 1.0, 8.0, 2.0, 5.0, None)
_NAMES = ("1", "2", "3", "5", "8", "∞")


def _setting(epsilon: float | None, point: str, **more: Any) -> Constants:
    if epsilon is not None:
        return compared("fashion-mnist", epsilon, point, **more)
    # The plan needs a σ; its noise is not added.
    silent = {"epsilon": None, "sigma": 1.0, "noise": "none"}
    return {**compared("fashion-mnist", 3.0, point, **more), **silent}


def _settings() -> dict[str, Constants]:
    found = {}
    for epsilon in _BUDGETS:
        name = "∞" if epsilon is None else f"{epsilon:g}"
        fewer = {} if epsilon is None else {"account": FEWER_STEPS}
        found[f"DP-SGD, ε = {name}"] = _setting(epsilon, "Here")
        found[f"DP-SAT, ε = {name}"] = _setting(epsilon, "SAT", radius=0.03)
        found[f"DP-SAM, ε = {name}"] = _setting(epsilon, "SAM", radius=0.03, **fewer)
    return found


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Points of accuracy above DP-SGD by budget; the last place is training without noise."""
    drawn, axes = new_figure("Fashion-MNIST", "ε", "points of accuracy above DP-SGD")
    for i, method in enumerate(("DP-SAT", "DP-SAM")):
        places, means, halves = [], [], []
        for place, name in enumerate(_NAMES):
            gain = summary.difference(
                runs, f"{method}, ε = {name}", f"DP-SGD, ε = {name}", "accuracy"
            )
            if gain is not None:
                places.append(place)
                means.append(100 * gain.mean)
                halves.append(100 * (gain.half or 0.0))
        axes.errorbar(places, means, halves, fmt=".-", color=f"C{i}", capsize=2, label=method)
    axes.axhline(0, color="grey", linestyle=":")
    axes.set_xticks(range(len(_NAMES)), _NAMES)
    axes.legend(fontsize="small")
    return drawn


BUDGETS = Experiment(
    name="dp-sat-budgets",
    paper=PAPER,
    item="Figures 7 and 16: DP-SAM and DP-SAT beside DP-SGD, ε = 1 to no noise, Fashion-MNIST",
    settings=_settings(),
    seeds=(0, 1, 2),
    measure=measure,
    columns=(Column("accuracy", "{:.2%}"),),
    judged=("accuracy",),
    rivals={
        f"{method}, ε = {name}": f"DP-SGD, ε = {name}"
        for name in _NAMES
        for method in ("DP-SAT", "DP-SAM")
    },
    expected="DP-SAT above zero everywhere; DP-SAM below it, and nearer the larger ε is",
    minutes=4.0,
    figure=figure,
)
