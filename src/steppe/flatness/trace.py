"""The trace of the Hessian: curvature summed over all directions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import Progress, Surface, rademacher
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class HessianTrace:
    """An unbiased estimate of the trace.

    Attributes:
        samples: independent estimates, one for each random vector.
    """

    samples: tuple[float, ...]

    @property
    def estimate(self) -> float:
        """Mean of the samples."""
        return statistics.fmean(self.samples)

    @property
    def standard_error(self) -> float:
        """Of the estimate."""
        return statistics.stdev(self.samples) / math.sqrt(len(self.samples))


def hessian_trace(
    surface: Surface,
    generator: torch.Generator,
    samples: int = 20,
    progress: Progress | None = None,
) -> HessianTrace:
    """Hutchinson's estimate: the mean of vᵀHv over vectors v of random signs.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the signs.
        samples: Hessian-vector products to spend, at least two; the error falls as 1/√samples.
        progress: called after each product.
    """
    validation.positive_integer("samples", samples)
    if samples < 2:
        raise validation.fail("samples", samples, "must be at least 2 for an error bar", "use 20")
    found = []
    for done in range(1, samples + 1):
        signs = rademacher(surface, generator).to(surface.weights.device)
        found.append(torch.dot(signs, surface.hessian_vector(signs)).item())
        if progress is not None:
            progress(done, samples)
    return HessianTrace(tuple(found))


def trace_figure(results: Mapping[str, HessianTrace]) -> Figure:
    """Traces of several solutions with two standard errors.

    Args:
        results: by the name to print.
    """
    figure, axes = new_figure("Trace of the Hessian", "", "trace")
    axes.errorbar(
        list(results),
        [result.estimate for result in results.values()],
        yerr=[2 * result.standard_error for result in results.values()],
        fmt="o",
        capsize=4,
    )
    axes.margins(x=0.3)
    return figure
