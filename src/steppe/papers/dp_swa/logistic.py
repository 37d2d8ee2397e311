"""Table 2 and Figure 3: logistic regression on Fashion-MNIST, one record in eight thousand."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe import data
from steppe.papers.dp_swa.linear import PAPER
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve, panels
from steppe.papers.one_layer import Cycles, Floats, Problem, cross_entropy, descend
from steppe.papers.plans import plan_of
from steppe.randomness import SeededSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CYCLES = (1, 75, 750, 7500)
_BLOCK = 60


@lru_cache(maxsize=1)
def pictures() -> tuple[Problem, Floats, Any]:
    """Fashion-MNIST with values in [0, 1] and a one for the bias; test inputs and labels."""
    found = data.load("fashion-mnist")
    train, test = (
        np.concatenate(
            [
                np.asarray(split.x, np.float32).reshape(len(split), -1) / 255,
                np.ones((len(split), 1)),
            ],
            axis=1,
        ).astype(np.float32)
        for split in (found.train, found.test)
    )
    return Problem(train, found.train.y, cross_entropy), test, found.test.y


def first_weights(random: np.random.Generator) -> Floats:
    """As torch's linear layer draws them."""
    return (random.uniform(-1, 1, (10, 785)) / np.sqrt(784)).astype(np.float32)


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """One run; all cycle lengths are averages of its path."""
    problem, inputs, labels = pictures()
    plan = plan_of(constants)
    epoch = plan.total_steps // constants["epochs"]
    cycles = Cycles(plan.total_steps, constants["warmup"], _CYCLES)
    epochs: list[float] = []
    curves: dict[str, list[float]] = {"SGD": [], "SWA": []}
    start, source = first_weights(np.random.default_rng(seed)), SeededSource(seed)
    path = start[None]
    for first, path in descend(problem, start, plan, source, constants["rate"], _BLOCK):
        cycles.absorb(first, path)
        done = first + len(path)
        if done % epoch == 0:
            average = cycles.mean(1)
            epochs.append(done / epoch)
            curves["SGD"].append(_percent(path[-1], inputs, labels))
            curves["SWA"].append(
                curves["SGD"][-1] if average is None else _percent(average, inputs, labels)
            )
    by_cycle = {str(c): _percent(cycles.mean(c), inputs, labels) for c in _CYCLES}
    averaged = sum(epoch * at > cycles.warmup for at in epochs)
    return {
        "SGD": curves["SGD"][-1],
        "SWA": by_cycle["1"],
        "gain": by_cycle["1"] - curves["SGD"][-1],
        "variance SGD": statistics.variance(curves["SGD"][-min(10, averaged) :]),
        "variance SWA": statistics.variance(curves["SWA"][-min(10, averaged) :]),
        "sigma": plan.sigma,
        "epsilon": plan.epsilon_spent(),
        "by cycle": by_cycle,
        "epochs": epochs,
        "curves": curves,
    }


def _percent(weights: Any, inputs: Floats, labels: Any) -> float:
    scores = inputs @ np.asarray(weights, dtype=np.float32).T
    return 100 * float((scores.argmax(axis=1) == labels).mean())


def _setting(epsilon: float) -> Constants:
    return {
        "epsilon": epsilon,
        "delta": 1e-5,
        "population": 60_000,
        "batch": 8,
        "epochs": 20,
        "clip": 1.0,
        "rate": 0.1,
        "warmup": 0.6,
    }


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    figure, (left, right) = panels(2)
    for i, (setting, own) in enumerate(by_setting(runs).items()):
        for name, line in (("SGD", ":"), ("SWA", "-")):
            means = mean_curve(run.measured["curves"][name] for run in own)
            epochs = own[0].measured["epochs"]
            left.plot(epochs, means, line, color=f"C{i}", label=f"DP-{name}, {setting}")
        points = mean_curve([*run.measured["by cycle"].values()] for run in own)
        cycles = [int(cycle) for cycle in own[0].measured["by cycle"]]
        right.plot(cycles, points, ".-", label=setting)
    left.set(xlabel="epoch", ylabel="test accuracy (%)", title="Logistic regression")
    right.set(xscale="log", xlabel="cycle length (steps)", ylabel="DP-SWA, test accuracy (%)")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    return figure


COLUMNS = (
    Column("SGD", "{:.2f}", "DP-SGD %"),
    Column("SWA", "{:.2f}", "DP-SWA %"),
    Column("gain", "{:.2f}", "SWA − SGD"),
    Column("variance SGD", "{:.2g}", "Var DP-SGD"),
    Column("variance SWA", "{:.2g}", "Var DP-SWA"),
)
LOGISTIC = Experiment(
    name="dp-swa-logistic",
    paper=PAPER,
    item="Table 2 and Figure 3: logistic regression on Fashion-MNIST, 150,000 steps of 8 records",
    settings={"ε = 1": _setting(1.0), "ε = 8": _setting(8.0)},
    seeds=(0, 1, 2, 3, 4),
    measure=measure,
    columns=COLUMNS,
    judged=("gain",),
    expected="68.4 and 74.7 % at ε = 1, 75.3 and 78.9 % at ε = 8; short cycles win",
    minutes=0.7,
    figure=_figure,
)
