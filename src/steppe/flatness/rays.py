"""Accuracy on the way out along random rays: how wide a solution is, as DP-SWA measures it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import Progress, Surface, gaussian, move_by
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Rays:
    """Accuracy at growing distance from a solution.

    Attributes:
        distances: Euclidean lengths of the steps from the solution.
        accuracies: one row for each ray, one entry for each distance.
    """

    distances: tuple[float, ...]
    accuracies: tuple[tuple[float, ...], ...]

    @property
    def means(self) -> tuple[float, ...]:
        """At each distance, the mean over rays."""
        return tuple(statistics.fmean(column) for column in zip(*self.accuracies, strict=True))

    @property
    def wideness(self) -> float:
        """Mean accuracy over all rays and all distances above zero; larger is wider."""
        away = [mean for d, mean in zip(self.distances, self.means, strict=True) if d > 0]
        return statistics.fmean(away)


def random_rays(
    surface: Surface,
    generator: torch.Generator,
    distances: Sequence[float],
    rays: int = 10,
    progress: Progress | None = None,
) -> Rays:
    """Walk away from a solution in uniformly random directions and measure the accuracy.

    To compare two solutions, give both the same distances and a generator with the same seed: they
    then walk along the same rays.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the directions.
        distances: lengths of the steps from the solution, at least one above zero.
        rays: number of directions.
        progress: called after each pass over the data.
    """
    validation.positive_integer("rays", rays)
    for distance in distances:
        validation.non_negative("distances", distance)
    if not any(distance > 0 for distance in distances):
        raise validation.fail(
            "distances", list(distances), "must hold one above 0", "give several, say 1 to 10"
        )
    rows = []
    for i in range(rays):
        direction = gaussian(surface, generator)
        direction /= torch.linalg.vector_norm(direction)
        row = []
        for j, distance in enumerate(distances):
            row.append(surface.accuracy_at(move_by(surface, distance * direction)))
            if progress is not None:
                progress(i * len(distances) + j + 1, rays * len(distances))
        rows.append(tuple(row))
    return Rays(tuple(distances), tuple(rows))


def percent_gain(base: Rays, other: Rays) -> float:
    """By how many percent `other` is wider than `base`; positive values favour `other`.

    Args:
        base: rays from the solution to compare with, for instance DP-SGD's last iterate.
        other: rays from the other solution, for instance the average, at the same distances.

    Examples:
        >>> percent_gain(Rays((1.0,), ((0.5,),)), Rays((1.0,), ((0.75,),)))
        50.0
    """
    if base.distances != other.distances:
        raise validation.fail(
            "distances", other.distances, f"must equal the base's, {base.distances}", "walk again"
        )
    if base.wideness == 0:
        raise validation.fail("wideness", 0.0, "of the base must be above 0", "use shorter steps")
    return 100 * (other.wideness - base.wideness) / base.wideness


def rays_figure(results: Mapping[str, Rays]) -> Figure:
    """Accuracy against distance: every ray thin, their mean thick.

    Args:
        results: by the name to print.
    """
    figure, axes = new_figure("Accuracy along random rays", "distance", "accuracy")
    for i, (name, result) in enumerate(results.items()):
        for row in result.accuracies:
            axes.plot(result.distances, row, color=f"C{i}", alpha=0.25, linewidth=0.8)
        axes.plot(result.distances, result.means, color=f"C{i}", linewidth=2, label=name)
    axes.legend()
    return figure
