"""Figures 5.2 to 5.7: linear regression, with every record clipped by itself.

The listing behind the paper's numbers forgets to reset the gradient inside a lot, so that the i-th
record is clipped together with the i − 1 before it. Both ways are here; the paper's numbers follow
from the second, in which one record can change up to a whole lot of clipped terms.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.weight_decay.paper import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_RECORDS, _HELD_OUT, _LOT = 800, 200, 10


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train on synthetic data and measure the mean squared error on held-out data."""
    rng = np.random.default_rng(seed)
    x, y = _data(rng, np.array(constants["weights"], dtype=np.float64))
    test = slice(_RECORDS, None)
    clip, rate = constants["clip"], constants["rate"]
    before, after = constants["before clip"], constants["after clip"]
    # As nn.Linear starts.
    bound = 1 / np.sqrt(x.shape[1] - 1)
    theta = rng.uniform(-bound, bound, x.shape[1])
    curve = []
    for epoch in range(constants["epochs"]):
        order = rng.permutation(_RECORDS)
        for lot in order.reshape(-1, _LOT):
            gradients = record_gradients(theta, x[lot], y[lot], before)
            if constants["accumulates"]:
                gradients = gradients.cumsum(axis=0)
            theta = theta - rate * (clipped_mean(gradients, clip) + after * theta)
            # The listing adds noise to the weights, outside of learning rate and lot.
            theta = theta + rng.normal(0.0, constants["sigma"] * clip, theta.shape)
        if (epoch + 1) % 10 == 0:
            curve.append(_mean_squared_error(theta, x[test], y[test]))
    penalty = before / 2 * float(theta @ theta)
    return {
        "mse": curve[-1],
        "penalised": curve[-1] + penalty,
        "curve": [round(value, 6) for value in curve],
        "weights": [round(value, 6) for value in theta.tolist()],
    }


def record_gradients(theta: Array, x: Array, y: Array, l2: float) -> Array:
    """The gradient of (x·θ − y)² + λ/2 ‖θ‖² for each record; the last column of x is one."""
    return 2 * (x @ theta - y)[:, None] * x + l2 * theta


def clipped_mean(gradients: Array, clip: float) -> Array:
    """The mean of gradients that were each shortened to the clip."""
    norms = np.linalg.norm(gradients, axis=1)
    factors = np.minimum(1.0, clip / (1e-8 + norms))
    return (factors[:, None] * gradients).mean(axis=0)


def _data(rng: np.random.Generator, weights: Array) -> tuple[Array, Array]:
    x = rng.normal(size=(_RECORDS + _HELD_OUT, len(weights)))
    y = x @ weights + rng.normal(0.0, 0.1, len(x))
    return np.column_stack([x, np.ones(len(x))]), y


def _mean_squared_error(theta: Array, x: Array, y: Array) -> float:
    return float(np.square(x @ theta - y).mean())


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Mean squared error of every setting, on a logarithmic scale."""
    drawn, axes = new_figure("Held-out error", "mean squared error", "")
    settings = list(dict.fromkeys(run.setting for run in runs))
    for place, setting in enumerate(reversed(settings)):
        found = summary.mean(runs, setting, "mse")
        if found is not None:
            color = "C0" if "before" in setting else "C1" if "after" in setting else "C7"
            axes.barh(place, found.mean, xerr=found.half or 0.0, color=color)
    axes.set_yticks(range(len(settings)), reversed(settings), fontsize="x-small")
    axes.set_xscale("log")
    return drawn


_CASES: Mapping[str, Constants] = {
    "baseline": {"clip": 0.1, "decay": 0.01, "rate": 0.03, "epochs": 100},
    "R = 0.01": {"clip": 0.01, "decay": 0.01, "rate": 0.1, "epochs": 200},
    "λ = 0.1": {"clip": 0.1, "decay": 0.1, "rate": 0.03, "epochs": 100},
}


def _settings(weights: Sequence[float], accumulates: bool) -> dict[str, Constants]:
    found: dict[str, Constants] = {}
    for case, constants in _CASES.items():
        shared = {key: value for key, value in constants.items() if key != "decay"}
        shared |= {"weights": list(weights), "sigma": 0.1, "accumulates": accumulates}
        decay = constants["decay"]
        found[f"{case}, decay after the clip"] = {
            **shared,
            "before clip": 0.0,
            "after clip": decay,
        }
        found[f"{case}, L2 before the clip"] = {
            **shared,
            "before clip": decay,
            "after clip": 0.0,
        }
        found[f"{case}, no decay"] = {**shared, "before clip": 0.0, "after clip": 0.0}
    return found


def _experiment(name: str, item: str, weights: Sequence[float], accumulates: bool) -> Experiment:
    how = "as the listing sums them" if accumulates else "each record clipped by itself"
    return Experiment(
        name=f"weight-decay-{name}",
        paper=PAPER,
        item=f"{item}, {how}",
        settings=_settings(weights, accumulates),
        seeds=tuple(range(5)),
        measure=measure,
        columns=(
            Column("mse", "{:.3g}", "held-out MSE"),
            Column("penalised", "{:.3g}", "MSE + penalty"),
        ),
        judged=("mse",),
        rivals={f"{case}, L2 before the clip": f"{case}, no decay" for case in _CASES},
        expected="decay before the clip reaches a far smaller error",
        minutes=0.02,
        figure=figure,
    )


_simple = functools.partial(_experiment, weights=(10.0,))
_multiple = functools.partial(_experiment, weights=(10.0, 5.0))
REGRESSIONS = (
    _simple("simple", "Figures 5.2 to 5.4, simple regression", accumulates=False),
    _multiple("multiple", "Figures 5.5 to 5.7, two regressors", accumulates=False),
    _simple("simple-listing", "Figures 5.2 to 5.4, simple regression", accumulates=True),
    _multiple("multiple-listing", "Figures 5.5 to 5.7, two regressors", accumulates=True),
)
