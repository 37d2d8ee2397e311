"""Tables 1, 2, 3 and 9 and Figures 1 and 3: what averages of checkpoints gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steppe import data
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve, panels
from steppe.papers.pictures import fit, load
from steppe.papers.plans import plan_of
from steppe.papers.recycling.checkpoints import Comparison, NetworkOutputs, Parts, Recorder
from steppe.private import Private
from steppe.sampling import Periodic, Poisson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Shejwalkar et al., Recycling Scraps: Improving Private Learning by Leveraging Checkpoints"
DECAYS = (0.85, 0.9, 0.95, 0.99, 0.999, 0.9999)
GAMMAS = (1.0, 3.0, 10.0, 30.0, 100.0)
PARTS = Parts(public=slice(0, 2500), validation=slice(2500, 5000), test=slice(5000, 10_000))
KS = (3, 5, 10, 20, 50, 100, 128)
_FASHION: Constants = {
    "data": "fashion-mnist",
    "model": "cnn-tanh-26k",
    "population": 60_000,
    "batch": 1024,
    "steps": 1152,
    "rate": 2.0,
    "clip": 1.0,
    "delta": 1e-5,
    "keep": 200,
    "period": None,
}
# Shortened: thirteen epochs, with a network that one core can train, on the 28×28 pixels it takes.
_CIFAR: Constants = {
    **_FASHION,
    "data": "cifar10",
    "side": 28,
    "population": 50_000,
    "steps": 640,
    "rate": 3.0,
    "keep": 136,
}


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """One run, and every average of its checkpoints."""
    pictures = load(constants["data"], constants.get("side"))
    period = constants["period"]
    plan = plan_of(constants, sampling=Poisson() if period is None else Periodic(period))
    recorders: list[Recorder] = []

    def after_step(private: Private) -> None:
        if not recorders:
            kept = min(constants["keep"], plan.total_steps)
            recorders.append(
                Recorder(private.model, plan.total_steps, kept, DECAYS, GAMMAS, every=8)
            )
        recorders[0].update(private.model, private.steps_done)

    fitted = fit(
        pictures,
        constants["model"],
        plan,
        seed,
        rate=constants["rate"],
        after_step=after_step,
        groups=None if period is None else data.by_parity(pictures.train[1]),
    )
    # The same shuffle for every seed: test pictures are not in a random order.
    order = torch.randperm(len(pictures.test[1]), generator=torch.Generator().manual_seed(0))
    outputs = NetworkOutputs(fitted.model, pictures.test[0][order], pictures.test[1][order])
    ks = [k for k in KS if k <= len(recorders[0].weights)]
    compared = Comparison(recorders[0], outputs, ks, PARTS)
    return {**fitted.measured(), **compared.measured()}


_FEW = 10  # points of a curve that say little by themselves


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Accuracy at the end of the run, the mean over seeds, for each setting.

    Where the tuned windows leave few moments at the end, the whole run is drawn as well.
    """
    settings = by_setting(runs)
    figure, places = panels(len(settings))
    for axes, (setting, own) in zip(places, settings.items(), strict=True):
        curves = [run.measured["curves"] for run in own]
        steps = min((curve["steps"] for curve in curves), key=len)
        for name in ("baseline", "EMA", "UPA", "OPA", "OMV"):
            means = mean_curve(curve["accuracy"][name] for curve in curves)
            axes.plot(steps, means, ".-" if len(steps) < _FEW else "-", label=name)
        if len(steps) < _FEW:
            run = own[0].measured
            moments = [run["steps"] * epoch / run["epochs"][-1] for epoch in run["epochs"]]
            whole = mean_curve([100 * a for a in r.measured["accuracies"]] for r in own)
            axes.plot(moments, whole, "x:", color="grey", label="baseline, all test pictures")
        axes.set(title=f"{setting} ({len(own)} seeds)", xlabel="step", ylabel="test accuracy (%)")
        axes.legend(fontsize="small")
    return figure


_COLUMNS = (
    Column("baseline", "{:.2f}", "last %"),
    Column("baseline, mean of the kept", "{:.2f}", "mean of those kept %"),
    *(Column(f"{name} gain", "{:.2f}", name) for name in ("EMA", "UPA", "PDA", "OPA", "OMV")),
    *(Column(f"best {name} gain", "{:.2f}", f"best {name}") for name in ("UPA", "OPA", "EMA")),
    Column("baseline sd", "{:.2f}", "sd over steps, last"),
    Column("UPA sd", "{:.2f}", "sd over steps, UPA"),
)


def _experiment(
    name: str, item: str, base: Constants, seeds: Sequence[int], expected: str, minutes: float
) -> Experiment:
    return Experiment(
        name=name,
        paper=PAPER,
        item=item,
        settings={f"ε = {e:g}": {**base, "epsilon": e} for e in (1.0, 8.0)},
        seeds=seeds,
        measure=measure,
        columns=_COLUMNS,
        judged=[column.name for column in _COLUMNS if column.name.endswith(" gain")],
        expected=expected,
        minutes=minutes,
        figure=_figure,
    )


_PERIODIC = {**_FASHION, "period": 128}
FASHION = _experiment(
    "recycling-fashion",
    "Tables 1 and 9, Figure 1: gains over the last checkpoint, on Fashion-MNIST with a small CNN",
    _FASHION,
    (0, 1, 2, 3, 4),
    "every average above the last checkpoint; the paper gains 3.8 and 2.2 points on CIFAR-10",
    7.0,
)
PERIODIC = _experiment(
    "recycling-periodic",
    "Table 2 and Figure 3: the same with even and odd classes that come and go, period 128",
    _PERIODIC,
    (0, 1, 2, 3, 4),
    "much larger gains; the paper: 7 and 17 points on CIFAR-10",
    7.0,
)
CIFAR = _experiment(
    "recycling-cifar",
    "Table 1 on CIFAR-10, shortened: 640 steps of 1024, a CNN of 28k weights, no augmentation",
    _CIFAR,
    (0, 1),
    "every average above the last checkpoint",
    7.0,
)
CIFAR_PERIODIC = _experiment(
    "recycling-cifar-periodic",
    "Table 2 on CIFAR-10, shortened as above, period 128",
    {**_CIFAR, "period": 128},
    (0, 1),
    "much larger gains than without periods",
    7.0,
)
