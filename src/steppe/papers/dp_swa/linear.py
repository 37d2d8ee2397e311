"""Table 1 and Figures 1 (left) and 2: how far from the optimum linear regression ends."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.clipping import Flat
from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve, panels
from steppe.papers.one_layer import Cycles, Problem, descend, squared_error
from steppe.plan import Plan
from steppe.randomness import SeededSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Indri et al., Can Stochastic Weight Averaging Improve Generalization in Private Learning?"
_CYCLES = (1, 16, 64, 256, 1024, 4096, 16384)
_BLOCK = 512


def _setting(epsilon: float, rate: float = 1.5e-3, epochs: int = 100) -> Constants:
    return {
        "epsilon": epsilon,
        "delta": 4096.0**-2,
        "records": 4096,
        "features": 256,
        "batch": 1,
        "epochs": epochs,
        "clip": 1.0,
        "rate": rate,
        "warmup": 0.2,
        "start": "as nn.Linear",
    }


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """One run; all cycle lengths are averages of its path."""
    random = np.random.default_rng(seed)
    records, features = constants["records"], constants["features"]
    optimum = random.uniform(size=features)
    inputs = random.standard_normal((records, features))
    targets = inputs @ optimum + random.standard_normal(records)
    start = random.uniform(-1, 1, (1, features)) / np.sqrt(features)
    plan = Plan(
        epsilon=constants["epsilon"],
        delta=constants["delta"],
        population=records,
        batch_size=constants["batch"],
        epochs=constants["epochs"],
        clip=Flat(constants["clip"]),
    )
    problem = Problem(inputs.astype(np.float32), targets.astype(np.float32), squared_error)
    cycles = Cycles(plan.total_steps, constants["warmup"], _CYCLES)
    moments = set(np.geomspace(1, plan.total_steps // _BLOCK, 60).astype(int).tolist())
    epoch = records // constants["batch"]
    curve: dict[str, list[float]] = {"steps": [], "SGD": [], "SWA": []}
    last: dict[str, list[float]] = {"SGD": [], "SWA": []}
    path = start
    source = SeededSource(seed)
    walk = descend(problem, start.astype(np.float32), plan, source, constants["rate"], _BLOCK)
    for first, path in walk:
        cycles.absorb(first, path)
        done, average = first + len(path), cycles.mean(1)
        if average is not None and done % epoch == 0 and done > plan.total_steps - 10 * epoch:
            last["SGD"].append(_distance(path[-1], optimum))
            last["SWA"].append(_distance(average, optimum))
        if average is not None and done // _BLOCK in moments:
            curve["steps"].append(done)
            curve["SGD"].append(_distance(path[-1], optimum))
            curve["SWA"].append(_distance(average, optimum))
    averages = {cycle: cycles.mean(cycle) for cycle in _CYCLES}
    return {
        "SGD": _distance(path[-1], optimum),
        "SWA": _distance(averages[1], optimum),
        "variance SGD": statistics.variance(last["SGD"]),
        "variance SWA": statistics.variance(last["SWA"]),
        "start": _distance(start, optimum),
        "sigma": plan.sigma,
        "epsilon": plan.epsilon_spent(),
        "by cycle": {str(cycle): _distance(found, optimum) for cycle, found in averages.items()},
        "curve": curve,
    }


def _distance(weights: Any, optimum: Any) -> float:
    return float(np.square(np.ravel(weights) - optimum).sum())


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Distance against steps with a 1/T line, and against the cycle length."""
    figure, (left, right) = panels(2)
    for i, (setting, own) in enumerate(by_setting(runs).items()):
        if "printed" not in setting:
            steps = own[0].measured["curve"]["steps"]
            for name, line in (("SGD", ":"), ("SWA", "-")):
                means = mean_curve(run.measured["curve"][name] for run in own)
                left.plot(steps, means, line, color=f"C{i}", label=f"DP-{name}, {setting}")
                if name == "SWA":
                    ideal = [means[-1] * steps[-1] / step for step in steps]
                    left.plot(steps, ideal, "--", color="grey", linewidth=0.8)
            points = mean_curve([*run.measured["by cycle"].values()] for run in own)
            cycles = [int(cycle) for cycle in own[0].measured["by cycle"]]
            right.plot(cycles, points, ".-", label=setting)
    left.set(xscale="log", yscale="log", xlabel="steps (grey: 1/T)", ylabel="‖θ − θ*‖²")
    right.set(xscale="log", yscale="log", xlabel="cycle length", ylabel="DP-SWA, ‖θ − θ*‖²")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    return figure


def _epsilon_figure(runs: Sequence[ExperimentRun]) -> Figure:
    figure, axes = new_figure("Linear regression, dependence on ε", "ε", "‖θ − θ*‖²")
    settings = by_setting(runs)
    budgets = [own[0].constants["epsilon"] for own in settings.values()]
    for name in ("SGD", "SWA"):
        found = [summary.mean(runs, setting, name) for setting in settings]
        means = [one.mean for one in found if one is not None]
        halves = [one.half or 0.0 for one in found if one is not None]
        axes.errorbar(budgets, means, halves, marker=".", capsize=2, label=f"DP-{name}")
    axes.plot(budgets, [means[-1] * (budgets[-1] / e) ** 2 for e in budgets], "--", label="1/ε²")
    axes.set(xscale="log", yscale="log")
    axes.legend()
    return figure


_COLUMNS = (
    Column("SGD", "{:.2f}", "DP-SGD ‖θ−θ*‖²"),
    Column("SWA", "{:.2f}", "DP-SWA ‖θ−θ*‖²"),
    Column("variance SGD", "{:.2g}", "Var DP-SGD"),
    Column("variance SWA", "{:.2g}", "Var DP-SWA"),
    Column("sigma", "{:.3f}", "σ"),
)
LINEAR = Experiment(
    name="dp-swa-linear",
    paper=PAPER,
    item="Table 1, Figures 1 (left) and 2: linear regression, and the learning rate as printed",
    settings={
        "ε = 8": _setting(8.0),
        "ε = 1": _setting(1.0),
        "ε = 8, rate as printed": _setting(8.0, rate=1e-4),
        "ε = 1, rate as printed": _setting(1.0, rate=1e-4),
    },
    seeds=(0, 1, 2, 3, 4),
    measure=measure,
    columns=_COLUMNS,
    expected="22 and 7.4 at ε = 1, 2.6 and 0.52 at ε = 8; DP-SWA falls like 1/T; short cycles win",
    minutes=0.3,
    figure=_figure,
)
EPSILON = Experiment(
    name="dp-swa-epsilon",
    paper=PAPER,
    item="Appendix C.1: how the distance to the optimum depends on ε",
    settings={f"ε = {e:g}": _setting(e) for e in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)},
    seeds=(0, 1, 2),
    measure=measure,
    columns=_COLUMNS,
    expected="the squared distance falls like 1/ε²",
    minutes=0.3,
    figure=_epsilon_figure,
)
