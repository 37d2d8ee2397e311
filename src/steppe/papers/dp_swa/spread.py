"""Figure 4 (right): how far runs with different seeds lie apart, with and without averaging."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steppe.averaging import SWA
from steppe.papers.dp_swa.linear import PAPER
from steppe.papers.dp_swa.networks import FASHION
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, panels
from steppe.papers.pictures import accuracy, fit, load
from steppe.papers.plans import plan_of
from steppe.private import Private

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train once; the accuracy of the iterate and of its average after each epoch.

    Before the warm-up ends the average is the iterate.
    """
    pictures, plan = load(constants["data"]), plan_of(constants)
    total, epochs = plan.total_steps, constants["epochs"]
    moments = {round(total * (i + 1) / epochs) for i in range(epochs)}
    averages: list[SWA] = []
    curves: dict[str, list[float]] = {"SGD": [], "SWA": []}

    def after_step(private: Private) -> None:
        model = private.model
        if not averages:
            averages.append(SWA(model, warmup=constants["warmup"], steps=total))
        averages[0].update(model)
        if private.steps_done in moments:
            curves["SGD"].append(100 * accuracy(model, pictures.test))
            curves["SWA"].append(curves["SGD"][-1])
            if averages[0].covers:
                with averages[0].applied(model):
                    curves["SWA"][-1] = 100 * accuracy(model, pictures.test)

    fitted = fit(
        pictures,
        constants["model"],
        plan,
        seed,
        rate=constants["rate"],
        evaluations=1,
        after_step=after_step,
    )
    last = {name: curve[-1] for name, curve in curves.items()}
    return {**fitted.measured(), **last, "gain": last["SWA"] - last["SGD"], "curves": curves}


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Mean accuracy over the epochs, and one standard deviation over seeds to each side."""
    settings = by_setting(runs)
    figure, places = panels(len(settings))
    for axes, (setting, own) in zip(places, settings.items(), strict=True):
        for i, name in enumerate(("SGD", "SWA")):
            columns = list(zip(*(run.measured["curves"][name] for run in own), strict=True))
            epochs = range(1, len(columns) + 1)
            means = [statistics.fmean(column) for column in columns]
            axes.plot(epochs, means, color=f"C{i}", label=f"DP-{name}")
            if len(own) > 1:
                spread = [statistics.stdev(column) for column in columns]
                low = [mean - sd for mean, sd in zip(means, spread, strict=True)]
                high = [mean + sd for mean, sd in zip(means, spread, strict=True)]
                axes.fill_between(epochs, low, high, color=f"C{i}", alpha=0.3)
        axes.set(title=f"{setting} ({len(own)} seeds)", xlabel="epoch", ylabel="accuracy (%)")
        axes.legend()
    return figure


SPREAD = Experiment(
    name="dp-swa-spread",
    paper=PAPER,
    item="Figure 4 (right) on Fashion-MNIST with a CNN of 26k weights: five seeds by epoch",
    settings={
        name: {key: value for key, value in constants.items() if key != "distances"}
        for name, constants in FASHION.settings.items()
    },
    seeds=(0, 1, 2, 3, 4),
    measure=measure,
    columns=(
        Column("SGD", "{:.2f}", "DP-SGD %"),
        Column("SWA", "{:.2f}", "DP-SWA %"),
        Column("gain", "{:.2f}", "SWA − SGD"),
    ),
    judged=("gain",),
    expected="DP-SWA more accurate, and its seeds nearer to each other",
    minutes=3.0,
    figure=_figure,
)
