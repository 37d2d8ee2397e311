"""Four panels of two solutions, from the stored numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steppe.flatness import SpectralDensity
from steppe.papers.experiment import ExperimentRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = ("DP-SGD", "DP-SAT")
_STYLES = (":", "--", "-")


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """The first stored run: norms, spectrum, interpolation, cosines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = runs[0].measured
    drawn = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(drawn)
    norms, spectrum, line, cosines = drawn.subplots(2, 2).flat
    _norms(norms, measured, float(runs[0].constants["clip"]))
    _spectrum(spectrum, measured)
    _line(line, measured["path"])
    _cosines(cosines, measured)
    for axes in (norms, spectrum, line, cosines):
        axes.legend(fontsize="small")
    return drawn


def _norms(axes: Axes, measured: Mapping[str, Any], clip: float) -> None:
    axes.set(title="Gradient norm of a record (public test set)", xlabel="norm", ylabel="records")
    for i, name in enumerate(_NAMES):
        for style, (when, found) in zip(_STYLES, measured[f"{name}, norms"].items(), strict=True):
            label = f"{name}, {when}: {found['clipped share']:.0%} clipped"
            axes.stairs(
                found["counts"], found["edges"], color=f"C{i}", linestyle=style, label=label
            )
    axes.axvline(clip, color="red", linewidth=1)
    axes.set_yscale("log")


def _spectrum(axes: Axes, measured: Mapping[str, Any]) -> None:
    axes.set(title="Hessian spectrum", xlabel="eigenvalue λ", ylabel="density p(λ)")
    found = {
        name: SpectralDensity(
            tuple(map(tuple, stored["nodes"])),
            tuple(map(tuple, stored["masses"])),
            stored["dimension"],
        )
        for name in _NAMES
        for stored in [measured[f"{name}, spectrum"]]
    }
    low = min(density.smallest for density in found.values())
    high = max(density.largest for density in found.values())
    width = (high - low) / 100
    points = np.linspace(low - 4 * width, high + 4 * width, 400).tolist()
    for i, (name, density) in enumerate(found.items()):
        values = [max(value, 1e-9) for value in density.at(points, width)]
        axes.semilogy(points, values, color=f"C{i}", label=name)
    axes.set_ylim(bottom=1e-7)


def _line(axes: Axes, path: Mapping[str, Any]) -> None:
    axes.set(title="From DP-SGD (0) to DP-SAT (1)", xlabel="α", ylabel="mean loss")
    for name, losses in path["losses"].items():
        axes.plot(path["positions"], losses, label=name)
    for place in (0, 1):
        axes.axvline(place, color="grey", linestyle=":")


def _cosines(axes: Axes, measured: Mapping[str, Any]) -> None:
    axes.set(title="Consecutive gradients", xlabel="progress (%)", ylabel="cosine")
    for i, name in enumerate(_NAMES):
        stored = measured[f"{name}, cosines"]
        for style, (kind, found) in zip(_STYLES[1:], stored.items(), strict=True):
            values = found["over the run"]
            progress = [100 * (j + 1) / len(values) for j in range(len(values))]
            label = f"{name}, {'before' if kind == 'clean' else 'after'} the noise"
            axes.plot(progress, values, style, color=f"C{i}", label=label)
