"""The density of all eigenvalues of the Hessian, by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import Progress, Surface, rademacher
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SpectralDensity:
    """Where the eigenvalues lie, as point masses that sum to one.

    Attributes:
        nodes: positions found from each random start.
        masses: of the same shape; each start's masses sum to one.
        dimension: number of eigenvalues the density stands for.
    """

    nodes: tuple[tuple[float, ...], ...]
    masses: tuple[tuple[float, ...], ...]
    dimension: int

    @property
    def largest(self) -> float:
        """The largest node; close to the largest eigenvalue and never above it but by rounding."""
        return max(max(row) for row in self.nodes)

    @property
    def smallest(self) -> float:
        """The smallest node; close to the smallest eigenvalue."""
        return min(min(row) for row in self.nodes)

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues that the density implies: one sample of `hessian_trace` a start.

        A few large eigenvalues make it far less certain than the shares; `hessian_trace` knows by
        how much.
        """
        return self.dimension * self._mean(lambda node: node)

    def mass(self, low: float, high: float) -> float:
        """Share of the eigenvalues in [low, high].

        Args:
            low: lower end, included.
            high: upper end, included.
        """
        return self._mean(lambda node: float(low <= node <= high))

    def at(self, points: Sequence[float], width: float) -> tuple[float, ...]:
        """The density with each mass spread to a normal curve; it integrates to one.

        Args:
            points: where to evaluate.
            width: standard deviation of the curve.
        """
        validation.positive("width", width)
        scale = 1 / (width * math.sqrt(2 * math.pi))

        def height(point: float) -> float:
            return self._mean(lambda node: scale * math.exp(-0.5 * ((point - node) / width) ** 2))

        return tuple(height(point) for point in points)

    def _mean(self, function: Callable[[float], float]) -> float:
        pairs = zip(self.nodes, self.masses, strict=True)
        rows = [
            sum(mass * function(node) for node, mass in zip(*pair, strict=True)) for pair in pairs
        ]
        return sum(rows) / len(rows)


def spectral_density(
    surface: Surface,
    generator: torch.Generator,
    steps: int = 80,
    starts: int = 1,
    progress: Progress | None = None,
) -> SpectralDensity:
    """Masses and positions of the Hessian's spectrum.

    Costs `steps`·`starts` Hessian-vector products and keeps `steps` vectors of the model's size.
    The random error of a share of the eigenvalues shrinks as 1/√(starts × weights).

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the start vectors.
        steps: of Lanczos; more resolve more eigenvalues, the outer ones first.
        starts: independent random starts that are averaged.
        progress: called after each product.
    """
    validation.positive_integer("steps", steps)
    validation.positive_integer("starts", starts)
    done = 0

    def product(vector: Tensor) -> Tensor:
        nonlocal done
        found = surface.hessian_vector(vector)
        done += 1
        if progress is not None:
            progress(done, starts * steps)
        return found

    nodes, masses = [], []
    for _ in range(starts):
        start = rademacher(surface, generator).to(surface.weights)
        values, vectors = torch.linalg.eigh(lanczos(product, start, steps))
        nodes.append(tuple(values.tolist()))
        masses.append(tuple(vectors[0].square().tolist()))
    return SpectralDensity(tuple(nodes), tuple(masses), surface.dimension)


def lanczos(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """The tridiagonal matrix of the Lanczos process, with full re-orthogonalisation.

    Without re-orthogonalisation rounding brings converged directions back and their eigenvalues
    appear more than once.

    Args:
        product: a symmetric linear map.
        start: first direction, of any length above zero.
        steps: size of the matrix; smaller where the space is exhausted first.

    Returns:
        A symmetric float64 matrix on the CPU.
    """
    steps = min(steps, start.numel())
    basis = start.new_empty(steps, start.numel())
    basis[0] = start / torch.linalg.vector_norm(start)
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(steps):
        following = product(basis[step])
        diagonal.append(torch.dot(following, basis[step].to(following)).item())
        scale = torch.linalg.vector_norm(following).item()
        known = basis[: step + 1]
        for _ in range(2):  # twice is enough: the second pass removes what rounding left
            following = following - (known.T @ (known @ following.to(known))).to(following)
        length = torch.linalg.vector_norm(following).item()
        exhausted = length <= 10 * torch.finfo(basis.dtype).eps * max(scale, abs(diagonal[0]))
        if step + 1 == steps or exhausted:
            break
        beside.append(length)
        basis[step + 1] = (following / length).to(basis)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    off = torch.tensor(beside, dtype=torch.float64)
    return matrix + torch.diag(off, 1) + torch.diag(off, -1)


def density_figure(results: Mapping[str, SpectralDensity]) -> Figure:
    """The spectra of several solutions on one logarithmic scale.

    Args:
        results: by the name to print.
    """
    figure, axes = new_figure("Hessian spectrum", "eigenvalue λ", "density p(λ)")
    low = min(result.smallest for result in results.values())
    high = max(result.largest for result in results.values())
    width = max(high - low, abs(high), 1e-12) / 100
    points = torch.linspace(low - 4 * width, high + 4 * width, 500, dtype=torch.float64).tolist()
    for name, result in results.items():
        axes.semilogy(points, [max(y, 1e-10) for y in result.at(points, width)], label=name)
    axes.set_ylim(bottom=1e-8)
    axes.legend()
    return figure
