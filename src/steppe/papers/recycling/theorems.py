"""Simulations for Theorem 2.1 (averages against the last iterate) and 3.1 (variance of a run)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.recycling.accuracy import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REPEATS = 200


def measure_risk(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Excess risk of noisy projected descent on a sum of kinks, which is 1-Lipschitz.

    L(θ) = Σⱼ max(θⱼ − θ*ⱼ, s (θ*ⱼ − θⱼ))/√p. With s = 1 it is an l1 distance, around which noise is
    symmetric; with s < 1 the iterates settle on one side of the optimum. The variance of the noise
    is L²T/(2n²ρ): the paper prints n for n², but one of n records moves the gradient of a mean loss
    by L/n. T makes the noise as large as the gradient.
    """
    random = np.random.default_rng(seed)
    records, dimension, rho = constants["records"], constants["dimension"], constants["rho"]
    steps = math.ceil(2 * records**2 * rho / dimension)
    noise = math.sqrt(steps / (2 * rho)) / records
    slope = constants["left slope"]
    optimum = random.uniform(-0.5, 0.5, dimension) / math.sqrt(dimension)
    size = math.sqrt(1 + dimension * noise**2)  # of a noisy gradient
    weights = np.zeros((_REPEATS, dimension))
    tail, tail_count, decayed, gamma = np.zeros_like(weights), 0, weights.copy(), 3.0
    for step in range(1, steps + 1):
        gradient = np.where(weights > optimum, 1.0, -slope) / math.sqrt(dimension)
        gradient += noise * random.standard_normal(weights.shape)
        weights = weights - gradient / (size * math.sqrt(step))
        weights /= np.maximum(1, np.linalg.norm(weights, axis=1, keepdims=True))
        decayed = decayed + (gamma + 1) / (step + gamma) * (weights - decayed)
        if step > steps // 2:
            tail, tail_count = tail + weights, tail_count + 1

    def risk(found: Any) -> float:
        away = found - optimum
        kinks = np.maximum(away, -slope * away)
        return float(kinks.sum(axis=1).mean() / math.sqrt(dimension))

    bound = math.sqrt(dimension) / (records * math.sqrt(rho))
    last, average, polynomial = risk(weights), risk(tail / tail_count), risk(decayed)
    return {
        "last": last,
        "UPA": average,
        "PDA": polynomial,
        "last over UPA": last / average,
        "UPA over √p/(n√ρ)": average / bound,
        "last over √p/(n√ρ)": last / bound,
        "steps": steps,
    }


def measure_variance(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Bias of the sample variance of f(θ) = tanh θ₁ over checkpoints, on L(θ) = ‖θ‖²/2.

    There DP-LD is the Ornstein-Uhlenbeck process, which can be drawn exactly at any times.
    """
    random = np.random.default_rng(seed)
    runs, k = 200_000, constants["checkpoints"]
    times = constants["burn-in"] + constants["gap"] * np.arange(k)
    position, at = np.full(runs, float(constants["start"])), 0.0
    values = np.empty((k, runs))
    for i, time in enumerate(times):
        kept = math.exp(-(time - at))
        position = kept * position + math.sqrt(1 - kept**2) * random.standard_normal(runs)
        values[i], at = np.tanh(position), float(time)
    estimate = values.var(axis=0, ddof=1)
    truth = float(values[-1].var(ddof=1))
    return {
        "estimate": float(estimate.mean()),
        "truth": truth,
        "bias": float(estimate.mean()) - truth,
        "relative": float(estimate.mean()) / truth,
        "standard error": float(estimate.std() / math.sqrt(runs)),
    }


def _risk_figure(runs: Sequence[ExperimentRun]) -> Figure:
    figure, axes = new_figure("Theorem 2.1", "n", "excess risk")
    constants = {run.setting: run.constants for run in runs}
    for slope, style in ((0.25, "-"), (1.0, ":")):
        own = {s: c["records"] for s, c in constants.items() if c["left slope"] == slope}
        for i, name in enumerate(("last", "UPA", "PDA")):
            found = [summary.mean(runs, setting, name) for setting in own]
            means = [one.mean for one in found if one is not None]
            label = f"{name}, slopes −{slope:g} and 1"
            axes.plot(list(own.values()), means, style, marker=".", color=f"C{i}", label=label)
    first = next(iter(constants.values()))
    scale = math.sqrt(first["dimension"] / first["rho"])
    records = sorted({table["records"] for table in constants.values()})
    axes.plot(records, [scale / n for n in records], "--", color="grey", label="√p/(n√ρ)")
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize="small")
    return figure


def _variance_figure(runs: Sequence[ExperimentRun]) -> Figure:
    figure, axes = new_figure("Theorem 3.1", "γ", "|E S − V| / V")
    for burn_in in dict.fromkeys(run.constants["burn-in"] for run in runs):
        own = sorted(
            (run.constants["gap"], abs(run.measured["relative"] - 1))
            for run in runs
            if run.constants["burn-in"] == burn_in and run.seed == 0
        )
        gaps, biases = zip(*own, strict=True)
        axes.plot(gaps, biases, ".-", label=f"first checkpoint at t = {burn_in:g}")
    axes.set(yscale="log", xlabel="γ, time between checkpoints")
    axes.legend()
    return figure


RISK = Experiment(
    name="recycling-theorem-2-1",
    paper=PAPER,
    item="Theorem 2.1, with its variance corrected: averages against the last iterate",
    settings={
        f"n = {n}, slopes −{slope:g} and 1": {
            "records": n,
            "dimension": 20,
            "rho": 0.5,
            "left slope": slope,
        }
        for slope in (0.25, 1.0)
        for n in (50, 100, 200, 400)
    },
    seeds=(0, 1, 2),
    measure=measure_risk,
    columns=(
        Column("last", "{:.2g}"),
        Column("UPA", "{:.2g}"),
        Column("PDA", "{:.2g}"),
        Column("last over UPA", "{:.2f}"),
        Column("UPA over √p/(n√ρ)", "{:.2f}"),
        Column("last over √p/(n√ρ)", "{:.2f}"),
    ),
    expected="averages like √p/(n√ρ); the bound of the last iterate has a further factor log n",
    minutes=0.2,
    figure=_risk_figure,
)
VARIANCE = Experiment(
    name="recycling-theorem-3-1",
    paper=PAPER,
    item="Theorem 3.1: bias of the variance over checkpoints against burn-in and spacing",
    settings={
        f"t₁ = {burn_in:g}, γ = {gap:g}": {
            "burn-in": burn_in,
            "gap": gap,
            "checkpoints": 5,
            "start": 5.0,
        }
        for burn_in in (0.5, 2.0, 8.0)
        for gap in (0.1, 0.5, 1.0, 2.0, 4.0)
    },
    seeds=(0,),
    measure=measure_variance,
    columns=(
        Column("estimate", "{:.4f}", "mean sample variance"),
        Column("truth", "{:.4f}", "variance of the last"),
        Column("relative", "{:.3f}", "ratio"),
        Column("standard error", "{:.1g}"),
    ),
    expected="the bias vanishes exponentially in burn-in and spacing; close ones see too little",
    minutes=0.02,
    figure=_variance_figure,
)
