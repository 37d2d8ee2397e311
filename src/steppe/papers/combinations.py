"""What no paper has measured: the methods together, at one (ε, δ) on one data set.

Each setting changes one place of the private step or several; averages are free, so that every run
reports its last weights and its moving average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.dp_sat.measured import compared, measure
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _setting(**more: Any) -> Constants:
    return {**compared("fashion-mnist", 3.0), **more}


_SAT = {"point": "SAT", "radius": 0.03}
_L2 = {"l2": 1e-4}  # the baseline of the report on weight decay; see STRENGTH
_STRONG = {"l2": 1e-3}
_QUANTILE = {"quantile": 0.5}


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Difference to plain DP-SGD, last weights and average, with intervals."""
    drawn, axes = new_figure("Fashion-MNIST, ε = 3", "points of accuracy above DP-SGD, last", "")
    settings = by_setting(runs)
    gains: Mapping[str, Callable[[ExperimentRun], float]] = {
        "last": lambda run: float(run.measured["accuracy"]),
        "average": lambda run: float(run.measured["averaged"]),
    }
    base = {run.seed: run.measured["accuracy"] for run in runs if run.setting == _BASELINE}
    for i, (name, value) in enumerate(gains.items()):
        for place, setting in enumerate(reversed(settings)):
            own = [run for run in settings[setting] if run.seed in base]
            found = summary.interval([100 * (value(run) - base[run.seed]) for run in own])
            if found is not None:
                label = name if place == 0 else None
                height = place + 0.3 * i
                axes.errorbar(
                    found.mean, height, xerr=found.half, fmt="o", color=f"C{i}", label=label
                )
    axes.axvline(0, color="grey", linestyle=":")
    axes.set_yticks(range(len(settings)), reversed(settings), fontsize="small")
    axes.legend(fontsize="small")
    return drawn


_BASELINE = "DP-SGD"
COMBINATIONS = Experiment(
    name="combinations",
    paper="No paper",
    item="DP-SAT, L2 before the clip, a quantile clip and EMA together, Fashion-MNIST at ε = 3",
    settings={
        _BASELINE: _setting(),
        "SAT": _setting(**_SAT),
        "quantile": _setting(**_QUANTILE),
        "SAT + quantile": _setting(**_SAT, **_QUANTILE),
        "L2": _setting(**_L2),
        "SAT + L2": _setting(**_SAT, **_L2),
        "SAT + L2 + quantile": _setting(**_SAT, **_L2, **_QUANTILE),
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=(
        Column("accuracy", "{:.2%}", "last"),
        Column("averaged", "{:.2%}", "EMA"),
    ),
    baseline=_BASELINE,
    judged=("accuracy", "averaged"),
    expected="unknown; averages should help every setting",
    minutes=8.0,
    figure=figure,
)

STRENGTH = replace(
    COMBINATIONS,
    name="combinations-strength",
    item="Two strengths of L2 before the clip, Fashion-MNIST at ε = 3, one seed",
    settings={
        _BASELINE: _setting(),
        "L2, λ = 0.0001": _setting(**_L2),
        "L2, λ = 0.001": _setting(**_STRONG),
        "SAT + L2, λ = 0.001": _setting(**_SAT, **_STRONG),
        "SAT + L2 + quantile, λ = 0.001": _setting(**_SAT, **_STRONG, **_QUANTILE),
    },
    seeds=(0,),
    expected="unknown; the stronger one was tried first",
)

EXPERIMENTS = (COMBINATIONS, STRENGTH)
