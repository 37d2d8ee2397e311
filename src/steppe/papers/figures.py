"""Figures that several experiments draw from their stored runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from steppe.flatness.figures import new_figure
from steppe.papers import summary
from steppe.papers.experiment import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_curves(runs: Sequence[Run]) -> Figure:
    """Test accuracy over epochs, the mean over seeds, and each seed as a thin line."""
    figure, axes = new_figure("Test accuracy", "epoch", "accuracy (%)")
    for i, setting in enumerate(_settings(runs)):
        own = [run for run in runs if run.setting == setting]
        epochs = own[0].measured["epochs"]
        curves = [[100 * value for value in run.measured["accuracies"]] for run in own]
        means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(epochs, means, ".-", color=f"C{i}", label=f"{setting} ({len(own)} seeds)")
        for curve in curves if len(curves) > 1 else ():
            axes.plot(epochs, curve, color=f"C{i}", linewidth=0.5, alpha=0.5)
    axes.legend(fontsize="small")
    return figure


def against(
    runs: Sequence[Run], constant: str, column: str, family: str, *, y: str, title: str
) -> Figure:
    """A column against a constant of the settings, one line for each value of another constant.

    Args:
        runs: stored.
        constant: on the horizontal axis, logarithmic.
        column: on the vertical axis, as mean and interval over seeds.
        family: the constant that tells lines apart.
        y: label of the vertical axis.
        title: above.
    """
    figure, axes = new_figure(title, constant, y)
    constants = {run.setting: run.constants for run in runs}
    families = dict.fromkeys(table.get(family) for table in constants.values())
    for value in families:
        points = []
        for setting, table in constants.items():
            found = summary.mean(runs, setting, column)
            if table.get(family) == value and found is not None and table.get(constant):
                points.append((float(table[constant]), found.mean, found.half or 0.0))
        points.sort()
        if points:
            x, means, halves = zip(*points, strict=True)
            axes.errorbar(x, means, halves, marker=".", capsize=2, label=f"{family} {value}")
    axes.set_xscale("log")
    axes.legend(fontsize="small")
    return figure


def _settings(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.setting for run in runs))
