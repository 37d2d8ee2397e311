"""Appendix A.1: how many checkpoints of a run of given length estimate a variance well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steppe.flatness import new_figure
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve
from steppe.papers.recycling.accuracy import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RUNS = 20_000
_ENOUGH = 1.1  # times the smallest error
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 512)


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Mean squared error of the sample variance of tanh θ₁ over k checkpoints at T/k, 2T/k, …, T.

    The loss is ‖θ‖²/2, for which DP-LD can be drawn exactly at any times. With k checkpoints the
    paper bounds the error by 1/k + 3 exp(−(T/k − c₁)/c₂), with constants that it does not give.
    """
    random = np.random.default_rng(seed)
    length, start = constants["length"], constants["start"]
    # θ_T is normal with this mean and variance; the variance of its tanh is found by quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    kept = math.exp(-length)
    values = np.tanh(kept * start + math.sqrt(1 - kept**2) * nodes)
    weights = weights / weights.sum()
    truth = float(weights @ values**2 - (weights @ values) ** 2)
    errors, biases = [], []
    for count in constants["counts"]:
        estimates = _sample_variances(random, count, length / count, start)
        errors.append(float(np.square(estimates - truth).mean()))
        biases.append(float(estimates.mean()) - truth)
    # More checkpoints than enough are neighbours that say the same again.
    enough = next(i for i, error in enumerate(errors) if error <= _ENOUGH**2 * min(errors))
    return {
        "enough": constants["counts"][enough],
        "spacing": length / constants["counts"][enough],
        "error": math.sqrt(errors[enough]) / truth,
        "error of two": math.sqrt(errors[0]) / truth,
        "error of most": math.sqrt(errors[-1]) / truth,
        "truth": truth,
        "errors": errors,
        "biases": biases,
    }


def _sample_variances(
    random: np.random.Generator, count: int, gap: float, start: float
) -> NDArray[np.float64]:
    position, kept = np.full(_RUNS, start), math.exp(-gap)
    values = np.empty((count, _RUNS))
    for i in range(count):
        position = kept * position + math.sqrt(1 - kept**2) * random.standard_normal(_RUNS)
        values[i] = np.tanh(position)
    found: NDArray[np.float64] = values.var(axis=0, ddof=1)
    return found


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    drawn, axes = new_figure("Appendix A.1", "k", "relative error of the sample variance")
    for setting, own in by_setting(runs).items():
        truth = own[0].measured["truth"]
        means = mean_curve(run.measured["errors"] for run in own)
        relative = [math.sqrt(error) / truth for error in means]
        axes.plot(own[0].constants["counts"], relative, ".-", label=setting)
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize="small")
    return drawn


COUNT = Experiment(
    name="recycling-count",
    paper=PAPER,
    item="Appendix A.1: the error of a variance by the number of checkpoints, for runs of length T",
    settings={
        f"T = {length}": {"length": length, "start": 5.0, "counts": list(_COUNTS)}
        for length in (5, 10, 20, 40, 80)
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=(
        Column("enough", "{:.1f}", "smallest k within 10 % of the best"),
        Column("spacing", "{:.2f}", "T/k there"),
        Column("error", "{:.3f}", "relative error there"),
        Column("error of two", "{:.3f}", "with k = 2"),
        Column("error of most", "{:.3f}", "with k = 512"),
    ),
    expected="best at k = T/(c₁ + c₂ ln(3T/c₂)): grows a little more slowly than T; more is worse",
    minutes=0.05,
    figure=_figure,
)
