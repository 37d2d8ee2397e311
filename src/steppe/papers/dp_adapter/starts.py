"""Table 1's design at the size of two cores, Figure 5 (γ) and Figure 3 (the perturbation batch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steppe.flatness import new_figure
from steppe.papers.dp_adapter.recipe import PAPER, RECIPE, measure
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun, number
from steppe.papers.figures import by_setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    Column("accuracy", "{:.2%}", "private accuracy"),
    Column("robust", "{:.2%}", "robust accuracy"),
    Column("upstream", "{:.2%}", "upstream accuracy"),
    Column("cost", "{:.3g}", "cost of the start"),
    Column("start seconds", "{:.0f}"),
    Column("epsilon", "{:.3f}", "ε spent"),
)
_PUBLIC = "on the first half of Fashion-MNIST's classes, then privately on the other half"


def _with(epsilon: float, kind: str | None, longer: float = 1.0, **method: Any) -> Constants:
    table = {**RECIPE, "epsilon": epsilon}
    if kind is None:
        return table
    steps = round(RECIPE["pretraining"]["steps"] * longer)
    pretraining = {**RECIPE["pretraining"], "steps": steps}
    return {**table, "pretraining": pretraining, "method": {"kind": kind, **method}}


def _adapter(epsilon: float, cap: float = 0.5, batch: int = 1000) -> Constants:
    return _with(epsilon, "DPAdapter", perturbation_batch=batch, cap=cap)


def _starts(epsilon: float) -> Experiment:
    kept = {"updates": 14, "perturbation_batch": 1000, "cap": 0.5}
    return Experiment(
        name=f"dpadapter-starts-{epsilon:g}",
        paper=PAPER,
        item=f"Table 1 at ε = {epsilon:g}, with the 26k tanh CNN, {_PUBLIC}",
        settings={
            "standard": _with(epsilon, "Standard"),
            "DPAdapter": _adapter(epsilon),
            "kept for 14 updates": _with(epsilon, "KeptPerturbation", **kept),
            "mean of past gradients": _with(epsilon, "MeanPerturbation", decay=0.98, cap=0.5),
            "AMP": _with(epsilon, "AMP", cap=0.5),
            "SAM": _with(epsilon, "SAM", radius=0.05),
            "standard, 2.5 times the steps": _with(epsilon, "Standard", longer=2.5),
            "no start": _with(epsilon, None),
        },
        seeds=(0, 1, 2),
        measure=measure,
        columns=_COLUMNS,
        baseline="standard",
        judged=("accuracy", "robust"),
        expected="DPAdapter above AMP, SAM and standard in robust and in private accuracy",
        minutes=6.0,
        figure=plane,
    )


def plane(runs: Sequence[ExperimentRun]) -> Figure:
    """Robust accuracy of the start against accuracy of the private run, as in Figure 6."""
    drawn, axes = new_figure("Starts and private runs", "robust accuracy", "private accuracy")
    for setting, own in by_setting(runs).items():
        pairs = [(number(run, "robust"), number(run, "accuracy")) for run in own]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if known:
            axes.scatter([x for x, _ in known], [y for _, y in known], label=setting)
    axes.legend(fontsize="small")
    return drawn


STARTS = tuple(_starts(epsilon) for epsilon in (1.0, 4.0))
CAP = Experiment(
    name="dpadapter-cap",
    paper=PAPER,
    item=f"Figure 5: the cap γ, at ε = 1, {_PUBLIC}",
    settings={f"γ = {cap:g}": _adapter(1.0, cap=cap) for cap in (0.5, 2.0, 0.1, 1.0, 4.0)},
    seeds=(0, 1, 2),
    measure=measure,
    columns=_COLUMNS,
    baseline="γ = 0.5",
    judged=("accuracy", "robust"),
    expected="robust accuracy grows with γ, until the upstream accuracy breaks down",
    minutes=8.0,
    figure=plane,
)
BATCH = Experiment(
    name="dpadapter-batch",
    paper=PAPER,
    item=f"Figure 3: the perturbation batch m₁, at ε = 1, {_PUBLIC}",
    settings={f"m₁ = {size}": _adapter(1.0, batch=size) for size in (50, 1000, 250, 2500)},
    seeds=(0, 1, 2),
    measure=measure,
    columns=_COLUMNS,
    baseline="m₁ = 50",
    judged=("accuracy", "robust"),
    expected="a larger perturbation batch gives a better start",
    minutes=9.0,
    figure=plane,
)
