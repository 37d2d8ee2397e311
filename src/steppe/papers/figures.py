"""Figures that several experiments draw from their stored runs, and what figures are made of."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from steppe.flatness import new_figure
from steppe.papers import summary
from steppe.papers.experiment import ExperimentRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def by_setting(runs: Sequence[ExperimentRun]) -> dict[str, list[ExperimentRun]]:
    """The runs of each setting, settings in the order in which they first come."""
    found: dict[str, list[ExperimentRun]] = {}
    for run in runs:
        found.setdefault(run.setting, []).append(run)
    return found


def mean_curve(curves: Iterable[Sequence[float]]) -> list[float]:
    """The mean over seeds, point by point; curves that begin later are aligned at their ends.

    Examples:
        >>> mean_curve([[1.0, 2.0, 3.0], [4.0, 5.0]])
        [3.0, 4.0]
    """
    own = list(curves)
    shortest = min(map(len, own))
    tails = (curve[len(curve) - shortest :] for curve in own)
    return [statistics.fmean(values) for values in zip(*tails, strict=True)]


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """An empty figure with pairs of axes side by side."""
    figure, axes = new_figure("", "", "")
    axes.remove()
    figure.set_size_inches(5.5 * count, 4)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def accuracy_curves(runs: Sequence[ExperimentRun]) -> Figure:
    """Test accuracy over epochs, the mean over seeds, and each seed as a thin line."""
    figure, axes = new_figure("Test accuracy", "epoch", "accuracy (%)")
    for i, (setting, own) in enumerate(by_setting(runs).items()):
        epochs = own[0].measured["epochs"]
        curves = [[100 * value for value in run.measured["accuracies"]] for run in own]
        label = f"{setting} ({len(own)} seeds)"
        axes.plot(epochs, mean_curve(curves), ".-", color=f"C{i}", label=label)
        for curve in curves if len(curves) > 1 else ():
            axes.plot(epochs, curve, color=f"C{i}", linewidth=0.5, alpha=0.5)
    axes.legend(fontsize="small")
    return figure


def against(
    runs: Sequence[ExperimentRun], constant: str, column: str, family: str, *, y: str, title: str
) -> Figure:
    """A column against a constant of the settings, one line for each value of another constant.

    Args:
        runs: stored.
        constant: on the horizontal axis, logarithmic.
        column: on the vertical axis: a dot for each seed, and a line through their means.
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
            found = list(summary.values(runs, setting, column).values())
            if table.get(family) == value and found and table.get(constant):
                points.append((float(table[constant]), found))
        points.sort()
        if points:
            x = [place for place, _ in points]
            means = [statistics.fmean(found) for _, found in points]
            label = value if isinstance(value, str) else f"{family} {value}"
            (line,) = axes.plot(x, means, label=label)
            # Few seeds have no interval worth drawing: every run is a dot.
            dots = [(place, one) for place, found in points for one in found]
            axes.plot(*zip(*dots, strict=True), ".", color=line.get_color())
    axes.set_xscale("log")
    axes.legend(fontsize="small")
    return figure
