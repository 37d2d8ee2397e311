"""Theorem 1 beside a measurement: averaging noisy descent on a quadratic, without clipping.

The printed theorem needs corrections. Its proof adds the noise outside the learning rate α, where
the algorithm multiplies it by α; its condition on α must be α < 1/‖A‖; and its last step replaces
the number of averaged iterates, K = T/c, by T. What the proof gives for the algorithm is

    E‖θ̄ − θ*‖² ≤ c² ‖θ₀ − θ*‖² / (T² α² μ²) + c² (d σ² + ς²) / (T μ²).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.flatness import new_figure
from steppe.papers.dp_swa.linear import PAPER
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TIMES = (64, 256, 1024, 4096, 16384)
_REPEATS = 64


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """The mean over independent descents of the squared distance of the average."""
    random = np.random.default_rng(seed)
    dimension, cycle = constants["dimension"], constants["cycle"]
    curvatures = np.linspace(constants["smallest"], constants["largest"], dimension)
    alpha, sigma, spread = constants["rate"], constants["sigma"], constants["gradient noise"]
    away = np.full((_REPEATS, dimension), constants["start"] / np.sqrt(dimension))
    total, counted, found = np.zeros_like(away), 0, {}
    # Independent errors of the sample gradient, of mean square ς² in all coordinates together.
    noise = np.sqrt(sigma**2 + spread**2 / dimension)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, _TIMES[-1] + 1):
            away -= alpha * (curvatures * away + noise * random.standard_normal(away.shape))
            if step % cycle == 0:
                total += away
                counted += 1
            if step in _TIMES:
                found[step] = float(np.square(total / counted).sum(axis=1).mean())
    bounds = {time: _bounds(constants, time) for time in _TIMES}
    end = _TIMES[-1]
    return {
        "measured": found[end],
        "corrected bound": bounds[end]["corrected"],
        "printed bound": bounds[end]["printed"],
        "bound over measured": bounds[end]["corrected"] / found[end],
        "times": list(_TIMES),
        "by time": list(found.values()),
        "corrected by time": [bounds[time]["corrected"] for time in _TIMES],
        "printed by time": [bounds[time]["printed"] for time in _TIMES],
    }


def _bounds(constants: Constants, time: int) -> dict[str, float]:
    mu, alpha, cycle = constants["smallest"], constants["rate"], constants["cycle"]
    private = constants["dimension"] * constants["sigma"] ** 2
    gradient = constants["gradient noise"] ** 2
    first = constants["start"] ** 2 / (time * alpha * mu) ** 2
    return {
        "corrected": cycle**2 * (first + (private + gradient) / (time * mu**2)),
        "printed": first + cycle * (private + alpha**2 * gradient) / (time * (alpha * mu) ** 2),
    }


def _setting(cycle: int, **changes: float) -> Constants:
    usual = {"smallest": 0.5, "largest": 2.0, "rate": 0.1, "sigma": 1.0, "gradient noise": 1.0}
    return {"dimension": 64, "start": 9.0, "cycle": cycle, **usual, **changes}


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    figure, axes = new_figure("Theorem 1", "T", "E‖θ̄ − θ*‖²")
    for i, run in enumerate(run for run in runs if run.seed == 0 and "cycle" in run.setting):
        times = run.measured["times"]
        axes.plot(times, run.measured["by time"], ".-", color=f"C{i}", label=run.setting)
        axes.plot(times, run.measured["corrected by time"], "--", color=f"C{i}", linewidth=0.8)
        axes.plot(times, run.measured["printed by time"], ":", color=f"C{i}", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="T (dashed: corrected bound, dotted: as printed)")
    axes.legend(fontsize="small")
    return figure


THEOREM = Experiment(
    name="dp-swa-theorem",
    paper=PAPER,
    item="Theorem 1: its bound, with corrections, beside a simulation",
    settings={
        **{f"cycle {cycle}": _setting(cycle) for cycle in (1, 4, 16, 64)},
        "‖A‖ = 8, α = 3 as the printed condition allows": _setting(1, largest=8.0, rate=3.0),
        "‖A‖ = 8, α = 0.1 as the corrected one does": _setting(1, largest=8.0, rate=0.1),
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=(
        Column("measured", "{:.3g}"),
        Column("corrected bound", "{:.3g}"),
        Column("printed bound", "{:.3g}"),
        Column("bound over measured", "{:.3g}"),
    ),
    expected="measured below the corrected bound, and falling like 1/T",
    minutes=0.1,
    figure=_figure,
)
