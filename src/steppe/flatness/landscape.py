"""Loss along random directions that are scaled to the weights, filter by filter (Li et al. 2018).

A network with larger weights looks flatter under a step of fixed length although it may compute the
same function. So each filter of the direction gets the length of the same filter of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import Progress, Surface, gaussian, move_by
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LossLine:
    """Loss along one direction.

    Attributes:
        positions: steps along the direction; 0 is the solution.
        losses: mean loss at each.
        accuracies: accuracy at each, None where targets are not classes.
    """

    positions: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float | None, ...]


@dataclass(frozen=True)
class Plane:
    """Loss on a square grid of two directions.

    Attributes:
        positions: steps along either direction; 0 is the solution.
        losses: `losses[i][j]` is i steps along the first and j along the second direction.
    """

    positions: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]


def filter_normalised_direction(surface: Surface, generator: torch.Generator) -> Tensor:
    """A Gaussian direction with the lengths of the weights' filters.

    Rows of tensors with two or more axes are filters (neurons of a linear layer, kernels of a
    convolution). Biases and the weights of normalisation do not move.

    Args:
        surface: where the weights are read.
        generator: draws the direction.
    """
    drawn = surface.split(gaussian(surface, generator))
    weights = surface.split(surface.weights)
    return torch.cat(
        [_scaled(direction.double(), weights[name].double()) for name, direction in drawn.items()]
    )


def _scaled(direction: Tensor, weight: Tensor) -> Tensor:
    if weight.ndim < 2:
        return torch.zeros(weight.numel(), dtype=direction.dtype, device=direction.device)
    rows, model = direction.flatten(1), weight.flatten(1)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)
    return (rows * (torch.linalg.vector_norm(model, dim=1, keepdim=True) / lengths)).flatten()


def loss_line(
    surface: Surface,
    generator: torch.Generator,
    radius: float = 1.0,
    points: int = 51,
    progress: Progress | None = None,
) -> LossLine:
    """Loss and accuracy along one filter-normalised direction.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the direction.
        radius: how far to go to either side; 1 is as far as the weights are long.
        points: passes over the data; odd, so that the solution itself is one.
        progress: called after each pass.
    """
    positions = _grid(radius, points)
    direction = filter_normalised_direction(surface, generator)
    found = []
    for position in positions:
        found.append(surface.at(move_by(surface, position * direction)))
        if progress is not None:
            progress(len(found), points)
    return LossLine(
        positions,
        tuple(measured.loss for measured in found),
        tuple(measured.accuracy for measured in found),
    )


def loss_plane(
    surface: Surface,
    generator: torch.Generator,
    radius: float = 1.0,
    points: int = 21,
    progress: Progress | None = None,
) -> Plane:
    """Loss on the plane of two filter-normalised directions.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the directions; the same seed gives two solutions the same draws.
        radius: how far to go to each side; 1 is as far as the weights are long.
        points: grid points a side; odd, so that the solution itself is one. Costs points² passes.
        progress: called after each pass.
    """
    positions = _grid(radius, points)
    first = filter_normalised_direction(surface, generator)
    second = filter_normalised_direction(surface, generator)
    losses: list[tuple[float, ...]] = []
    for i, along in enumerate(positions):
        row = []
        for j, across in enumerate(positions):
            row.append(surface.at(move_by(surface, along * first + across * second)).loss)
            if progress is not None:
                progress(i * points + j + 1, points * points)
        losses.append(tuple(row))
    return Plane(positions, tuple(losses))


def _grid(radius: float, points: int) -> tuple[float, ...]:
    validation.positive("radius", radius)
    validation.positive_integer("points", points)
    if points < 3 or points % 2 == 0:
        rule = "must be odd and at least 3, so that the solution is in the middle"
        raise validation.fail("points", points, rule, "use 51")
    half = points // 2
    return tuple(radius * (i - half) / half for i in range(points))


def line_figure(results: Mapping[str, LossLine]) -> Figure:
    """Loss along a direction for several solutions.

    Args:
        results: by the name to print.
    """
    figure, axes = new_figure("Filter-normalised direction", "step", "mean loss")
    for name, result in results.items():
        axes.plot(result.positions, result.losses, label=name)
    axes.legend()
    return figure


def plane_figure(result: Plane, title: str = "Filter-normalised plane") -> Figure:
    """Contours of the loss on a plane.

    Args:
        result: what to draw.
        title: above the axes.
    """
    figure, axes = new_figure(title, "first direction", "second direction")
    columns = list(zip(*result.losses, strict=True))  # the first direction runs to the right
    drawn = axes.contourf(result.positions, result.positions, columns, levels=20)
    figure.colorbar(drawn, label="mean loss")
    axes.plot(0, 0, "w+")
    return figure
