"""A loss on the plane with one flat and one sharp minimum, both almost zero.

The formula of the paper names the first centre in both terms; then there is no second minimum. Here
the second term has the second centre, as its figure shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steppe.flatness.figures import new_figure
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]


@dataclass(frozen=True)
class TwoMinima:
    """F₁(w)·φ₁/(φ₁+φ₂) + F₂(w)·φ₂/(φ₁+φ₂) with φᵢ = exp(−dᵢ) and dᵢ the distance to centre i.

    F₁ = sigmoid(d₁/5 − 5/d₁) is wide, F₂ = sigmoid(d₂ − 1/d₂) is five times as narrow.

    Attributes:
        flat: centre of the flat minimum.
        sharp: centre of the sharp minimum.

    Examples:
        >>> bool((TwoMinima()(torch.tensor([[2.5, 2.5], [7.5, 7.5]])) < 1e-3).all())
        True
    """

    flat: Point = (2.5, 2.5)
    sharp: Point = (7.5, 7.5)

    def __call__(self, points: Tensor) -> Tensor:
        """The loss at points of shape (…, 2)."""
        to_flat, to_sharp = (_distance(points, centre) for centre in (self.flat, self.sharp))
        near_flat = torch.sigmoid(to_sharp - to_flat)  # φ₁ / (φ₁ + φ₂)
        wide = torch.sigmoid(to_flat / 5 - 5 / to_flat)
        narrow = torch.sigmoid(to_sharp - 1 / to_sharp)
        return wide * near_flat + narrow * (1 - near_flat)

    def gradient(self, point: Tensor) -> Tensor:
        """The gradient at one point."""
        leaf = point.detach().requires_grad_()
        return torch.autograd.grad(self(leaf), leaf)[0]

    def sharpness(self, point: Tensor) -> float:
        """The spectral norm of the Hessian at one point."""
        hessian = torch.func.jacrev(torch.func.grad(self))(point.detach())
        return torch.linalg.matrix_norm(hessian, 2).item()


def _distance(points: Tensor, centre: Point) -> Tensor:
    # The tiny constant keeps the derivatives finite at the centre itself.
    offset = points - torch.tensor(centre, dtype=points.dtype)
    return (offset.square().sum(-1) + 1e-12).sqrt()


@dataclass(frozen=True)
class Descent:
    """Noisy gradient descent on the plane.

    Attributes:
        points: where each step started, and where the last one ended.
        losses: at the points.
        sharpness: ‖H‖₂ at the points.
        gradient_differences: for each step, how far noise moved the next gradient:
            ‖∇ℓ(w − η·noise-free gradient) − ∇ℓ(w − η·noisy gradient)‖.
    """

    points: tuple[Point, ...]
    losses: tuple[float, ...]
    sharpness: tuple[float, ...]
    gradient_differences: tuple[float, ...]


def noisy_descent(
    start: Point,
    generator: torch.Generator,
    steps: int = 100,
    rate: float = 0.1,
    noise: float = 0.5,
    surface: TwoMinima | None = None,
) -> Descent:
    """Follow the gradient plus Gaussian noise.

    Two runs with the same seed meet the same noise, so starts at equal distance from the two minima
    compare flat with sharp and nothing else.

    Args:
        start: first point.
        generator: draws the noise.
        steps: how many.
        rate: η.
        noise: standard deviation for each coordinate of the gradient.
        surface: what to descend; the paper's centres unless given.
    """
    validation.positive_integer("steps", steps)
    validation.positive("rate", rate)
    validation.non_negative("noise", noise)
    surface = surface or TwoMinima()
    points = [torch.tensor(start, dtype=torch.float64)]
    differences = []
    for _ in range(steps):
        gradient = surface.gradient(points[-1])
        drawn = noise * torch.randn(2, generator=generator, dtype=torch.float64)
        quiet, moved = points[-1] - rate * gradient, points[-1] - rate * (gradient + drawn)
        change = surface.gradient(quiet) - surface.gradient(moved)
        differences.append(torch.linalg.vector_norm(change).item())
        points.append(moved)
    return Descent(
        tuple((point[0].item(), point[1].item()) for point in points),
        tuple(surface(torch.stack(points)).tolist()),
        tuple(surface.sharpness(point) for point in points),
        tuple(differences),
    )


def two_minima_figure(paths: Mapping[str, Descent], surface: TwoMinima | None = None) -> Figure:
    """Contours of the loss with paths on top.

    Args:
        paths: by the name to print; may be empty.
        surface: the paper's centres unless given.
    """
    surface = surface or TwoMinima()
    figure, axes = new_figure("A flat and a sharp minimum", "w₁", "w₂")
    ticks = torch.linspace(0, 10, 201, dtype=torch.float64)
    right, up = torch.meshgrid(ticks, ticks, indexing="xy")
    heights = surface(torch.stack([right, up], -1))
    drawn = axes.contourf(ticks.tolist(), ticks.tolist(), heights.tolist(), levels=30)
    figure.colorbar(drawn, label="loss")
    for name, path in paths.items():
        axes.plot(*zip(*path.points, strict=True), ".-", markersize=2, linewidth=0.8, label=name)
    if paths:
        axes.legend()
    return figure


def descent_figure(paths: Mapping[str, Descent]) -> Figure:
    """Sharpness (dashed) and the change of the gradient by noise (solid) along each path.

    Args:
        paths: by the name to print.
    """
    figure, axes = new_figure("Sharp ground amplifies noise", "step", "‖H‖₂ and Δ")
    for i, (name, path) in enumerate(paths.items()):
        axes.plot(path.sharpness, "--", color=f"C{i}", label=f"‖H‖₂, {name}")
        axes.plot(path.gradient_differences, "-", color=f"C{i}", label=f"Δ, {name}")
    axes.legend()
    return figure
