"""The largest eigenvalues of the Hessian: how sharp the sharpest directions are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import Progress, Surface, gaussian
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Up to this many weights the whole matrix is cheaper than an iteration, and exact.
_DENSE = 64
_RESTARTS = 200


@dataclass(frozen=True)
class Eigenvalues:
    """The largest eigenvalues of the Hessian.

    Attributes:
        values: largest first.
        residuals: ‖Hv − λv‖ for each; a true eigenvalue lies within this distance.
        products: Hessian-vector products that were needed.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    products: int

    @property
    def sharpness(self) -> float:
        """λ₁, the curvature of the sharpest direction."""
        return self.values[0]

    def ratio(self, position: int = 5) -> float:
        """λ₁ / λ_position: how much the sharpest direction stands out; infinite over 0.

        Args:
            position: counted from 1.
        """
        if not 1 <= position <= len(self.values):
            rule = f"must be between 1 and {len(self.values)}"
            raise validation.fail("position", position, rule, "ask for more eigenvalues")
        smaller = self.values[position - 1]
        return self.values[0] / smaller if smaller else math.inf


def top_eigenvalues(
    surface: Surface,
    generator: torch.Generator,
    count: int = 5,
    tolerance: float = 1e-3,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The `count` largest eigenvalues, by ARPACK's restarted Lanczos on Hessian-vector products.

    Memory: about 2·count + 20 vectors of the size of the model in float64.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the start vector.
        count: how many.
        tolerance: relative accuracy to stop at.
        progress: called after each product; the total is not known beforehand.
    """
    validation.positive_integer("count", count)
    validation.positive("tolerance", tolerance)
    size = surface.dimension
    if count > size:
        rule = f"must be at most the number of weights, {size}"
        raise validation.fail("count", count, rule, "ask for fewer")
    import numpy as np

    products = 0

    def product(vector: Any) -> Any:
        nonlocal products
        found = surface.hessian_vector(torch.from_numpy(np.array(vector).ravel())).cpu().numpy()
        products += 1
        if progress is not None:
            progress(products, None)
        return found

    if size <= max(_DENSE, count + 1):
        matrix = np.stack([product(unit) for unit in np.eye(size)])
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    else:
        start = gaussian(surface, generator).numpy()
        values, vectors = _lanczos(product, size, count, tolerance, start)
    order = np.argsort(values)[::-1][:count]
    largest = [float(values[i]) for i in order]
    residuals = [
        float(np.linalg.norm(product(vectors[:, i]) - values[i] * vectors[:, i])) for i in order
    ]
    return Eigenvalues(tuple(largest), tuple(residuals), products)


def _lanczos(product: Any, size: int, count: int, tolerance: float, start: Any) -> tuple[Any, Any]:
    import numpy as np
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    if not product(start).any():  # no curvature at all, of which ARPACK makes an error
        return np.zeros(count), np.eye(size, count)
    operator = LinearOperator((size, size), matvec=product, dtype=float)
    try:
        found = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance, maxiter=_RESTARTS)
    except ArpackNoConvergence as error:
        rule = f"was not reached in {_RESTARTS} restarts"
        raise validation.fail("tolerance", tolerance, rule, "use a larger one") from error
    return found[0], found[1]


def eigenvalue_figure(results: Mapping[str, Eigenvalues]) -> Figure:
    """The largest eigenvalues of several solutions side by side.

    Args:
        results: by the name to print.
    """
    figure, axes = new_figure("Largest Hessian eigenvalues", "rank", "eigenvalue")
    for name, result in results.items():
        axes.plot(range(1, len(result.values) + 1), result.values, "o-", label=name)
    axes.legend()
    return figure
