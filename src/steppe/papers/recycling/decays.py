"""Table 9: the accuracy of the exponential average for each β."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steppe.averaging import EMA, Averages
from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting
from steppe.papers.pictures import accuracy, fit, load
from steppe.papers.plans import plan_of
from steppe.papers.recycling.accuracy import CIFAR, DECAYS, FASHION, PAPER
from steppe.private import Private

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """One run; the accuracy on the whole test set of its last weights and of each average."""
    pictures, decays = load(constants["data"], constants.get("side")), constants["decays"]
    averages: list[Averages] = []

    def after_step(private: Private) -> None:
        if not averages:
            averages.append(Averages([EMA(private.model, decay) for decay in decays]))
        averages[0].update(private.model)

    fitted = fit(
        pictures,
        constants["model"],
        plan_of(constants),
        seed,
        rate=constants["rate"],
        evaluations=1,
        after_step=after_step,
    )
    found = {}
    for decay, average in zip(decays, averages[0], strict=True):
        with average.applied(fitted.model):
            found[f"β = {decay:g}"] = 100 * accuracy(fitted.model, pictures.test)
    return {**fitted.measured(), "last": 100 * fitted.accuracies[-1], **found}


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Points above the last weights of the same run, by β."""
    drawn, axes = new_figure("Exponential averages", "β", "points above the last weights")
    for i, (setting, own) in enumerate(by_setting(runs).items()):
        for place, decay in enumerate(DECAYS):
            gains = [run.measured[f"β = {decay:g}"] - run.measured["last"] for run in own]
            found = summary.interval(gains)
            if found is not None:
                label = setting if place == 0 else None
                axes.errorbar(
                    place + 0.1 * i, found.mean, found.half, fmt="o", color=f"C{i}", label=label
                )
    axes.axhline(0, color="grey", linestyle=":")
    axes.set_xticks(range(len(DECAYS)), [f"{decay:g}" for decay in DECAYS])
    axes.legend(fontsize="small")
    return drawn


def _setting(base: Constants) -> Constants:
    unused = ("keep", "period")
    return {**{k: v for k, v in base.items() if k not in unused}, "decays": list(DECAYS)}


DECAY_TABLE = Experiment(
    name="recycling-decays",
    paper=PAPER,
    item="Table 9: every β of the exponential average, with the runs' settings of Table 1",
    settings={
        f"{data}, {name}": _setting(constants)
        for data, experiment in (("Fashion-MNIST", FASHION), ("CIFAR-10", CIFAR))
        for name, constants in experiment.settings.items()
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=(
        Column("last", "{:.2f}", "last %"),
        *(Column(f"β = {decay:g}", "{:.2f}") for decay in DECAYS),
    ),
    expected="0.95 and 0.9 or 0.99 best, 0.6 and 0.3 points above 0.999, which equals 0.9999",
    minutes=2.5,
    figure=_figure,
)
