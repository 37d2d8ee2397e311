"""An empty figure to draw on. Nothing here needs a screen or touches matplotlib's global state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """One pair of axes with its words; save it with `figure.savefig(path)`.

    Args:
        title: above the axes.
        x: label of the horizontal axis.
        y: label of the vertical axis.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes
