"""Figures of flatness: rays, landscape, spectrum, eigenvalues, and single numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from steppe.report.axes import Axis
from steppe.report.chart import Chart
from steppe.report.curves import share_axis, title
from steppe.report.layers import Line, Mark
from steppe.report.numbers import percent, short
from steppe.report.parts import mapping, needed, numbers

_CURVE_POINTS = 120


def flatness_charts(part: Mapping[str, Any], tones: Mapping[str, int]) -> list[Chart]:
    """Rays, landscape, spectrum and eigenvalues, whichever were measured.

    Args:
        part: what `add_flatness` kept.
        tones: the colour of each model.
    """
    models = {
        str(name): measures
        for name, measures in mapping(part, "models").items()
        if isinstance(measures, dict)
    }
    coloured = {name: tones.get(name, len(tones) + i) for i, name in enumerate(models)}
    made = [make(models, coloured) for make in (_rays, _landscape, _spectrum, _eigenvalues)]
    return [chart for chart in made if chart is not None]


def flatness_rows(part: Mapping[str, Any]) -> list[list[str]]:
    """Single numbers for each model: measure, model, value."""
    rows = []
    for name, measures in mapping(part, "models").items():
        if not isinstance(measures, dict):
            continue
        if isinstance(trace := measures.get("trace"), dict):
            samples = numbers(trace, "samples")
            rows.append(
                ["trace of the Hessian", title(str(name)), short(statistics.fmean(samples))]
            )
        if isinstance(robust := measures.get("robustness"), dict):
            noisy = statistics.fmean(numbers(robust, "accuracies"))
            unit = "of each tensor's size" if robust.get("relative") else "absolute"
            what = f"accuracy under weight noise {short(needed(robust, 'noise'))} ({unit})"
            change = f"{percent(noisy)}, without noise {percent(needed(robust, 'clean'))}"
            rows.append([what, title(str(name)), change])
    return rows


def _rays(models: Mapping[str, dict[str, Any]], tones: Mapping[str, int]) -> Chart | None:
    layers = []
    for name, measures in models.items():
        if not isinstance(found := measures.get("rays"), dict):
            continue
        distances = numbers(found, "distances")
        columns = list(zip(*found["accuracies"], strict=True))
        points = []
        for distance, column in zip(distances, columns, strict=True):
            mean = statistics.fmean(column)
            points.append(Mark(distance, mean, f"distance {short(distance)}", percent(mean)))
        band = [(d, min(c), max(c)) for d, c in zip(distances, columns, strict=True)]
        layers.append(Line(title(name), tones[name], points, band))
    if not layers:
        return None
    heights = [y for line in layers for _, low, high in line.band for y in (low, high)]
    across = [point.x for line in layers for point in line.points]
    words = (
        "Accuracy along random directions from the solution: the mean, and the range over rays. "
        "The slower it falls, the flatter the minimum."
    )
    x = Axis.around("distance from the solution", across, tight=True)
    y = share_axis("accuracy", heights)
    return Chart("rays", "Random rays", words, x, y, layers, "distance")


def _landscape(models: Mapping[str, dict[str, Any]], tones: Mapping[str, int]) -> Chart | None:
    layers = []
    for name, measures in models.items():
        if not isinstance(found := measures.get("line"), dict):
            continue
        pairs = zip(numbers(found, "positions"), found["losses"], strict=True)
        points = [
            Mark(position, float(loss), f"position {short(position)}", short(float(loss)))
            for position, loss in pairs
            if loss is not None
        ]
        if points:
            layers.append(Line(title(name), tones[name], points))
    if not layers:
        return None
    words = "Loss along one random direction, scaled filter by filter; 0 is the solution."
    x = Axis.around("position", [p.x for line in layers for p in line.points], tight=True)
    y = Axis.around("loss", [p.y for line in layers for p in line.points])
    return Chart("landscape", "Loss landscape", words, x, y, layers, "position")


def _spectrum(models: Mapping[str, dict[str, Any]], tones: Mapping[str, int]) -> Chart | None:
    from steppe.flatness import SpectralDensity

    found = {
        name: SpectralDensity(d["nodes"], d["masses"], int(d["dimension"]))
        for name, measures in models.items()
        if isinstance(d := measures.get("density"), dict)
    }
    if not found:
        return None
    low = min(density.smallest for density in found.values())
    high = max(density.largest for density in found.values())
    width = (high - low) / 100 or 1.0
    step = (high - low + 6 * width) / (_CURVE_POINTS - 1)
    places = [low - 3 * width + i * step for i in range(_CURVE_POINTS)]
    layers = []
    for name, density in found.items():
        # A tenth of the height that a single eigenvalue makes is as good as none.
        least = 0.1 / (max(density.dimension, 1) * width * math.sqrt(2 * math.pi))
        heights = [math.log10(max(height, least)) for height in density.at(places, width)]
        points = [
            Mark(x, y, f"eigenvalue {short(x, 3)}", f"density {10**y:.1e}")
            for x, y in zip(places, heights, strict=True)
        ]
        layers.append(Line(title(name), tones[name], points))
    words = "Where the eigenvalues of the Hessian lie. Large eigenvalues mean a sharp minimum."
    x = Axis("eigenvalue", places[0], places[-1])
    y = Axis.around(
        "density, powers of ten",
        [p.y for line in layers for p in line.points],
        text=lambda power: f"{power:.0f}",
    )
    return Chart("spectrum", "Spectrum of the Hessian", words, x, y, layers, "eigenvalue")


def _eigenvalues(models: Mapping[str, dict[str, Any]], tones: Mapping[str, int]) -> Chart | None:
    layers = []
    for name, measures in models.items():
        if not isinstance(found := measures.get("eigenvalues"), dict):
            continue
        values = numbers(found, "values")
        points = [Mark(float(i), v, f"eigenvalue {i}", short(v)) for i, v in enumerate(values, 1)]
        layers.append(Line(title(name), tones[name], points))
    if not layers:
        return None
    words = "The largest eigenvalues of the Hessian: the curvature in the steepest directions."
    longest = max(len(line.points) for line in layers)
    x = Axis("rank", 0.5, longest + 0.5, lambda rank: f"{rank:.0f}" if rank == int(rank) else "")
    y = Axis.around("eigenvalue", [0.0, *(p.y for line in layers for p in line.points)])
    return Chart("eigenvalues", "Largest eigenvalues", words, x, y, layers, "rank")
