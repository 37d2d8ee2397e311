"""Accuracy when noise is added to the weights, the measure of DPAdapter."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
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
class RobustAccuracy:
    """Accuracies of noisy copies of one solution.

    Attributes:
        noise: standard deviation, of the kind that `relative` says.
        relative: whether it is in units of each tensor's root mean square.
        clean: accuracy without noise.
        accuracies: of the noisy copies.
    """

    noise: float
    relative: bool
    clean: float
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The robust accuracy."""
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        """Standard deviation over the copies; 0 for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def robust_accuracy(
    surface: Surface,
    generator: torch.Generator,
    noise: float,
    relative: bool = False,
    copies: int = 10,
    progress: Progress | None = None,
) -> RobustAccuracy:
    """Accuracy under independent Gaussian noise on every trained weight.

    The paper writes N(0, 0.1) and does not say whether 0.1 is a variance; here `noise` is always a
    standard deviation. Absolute noise depends on the scale of the weights, which a rescaling that
    leaves the function alone can change; relative noise does not.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        generator: draws the noise; the same seed gives two solutions the same draws.
        noise: standard deviation.
        relative: whether to multiply it with each tensor's root mean square. Tensors of zeros, such
            as biases at the start, then get none.
        copies: independent noisy copies, one pass over the data each.
        progress: called after each pass.
    """
    validation.non_negative("noise", noise)
    validation.positive_integer("copies", copies)
    scale = noise * (_root_mean_squares(surface) if relative else 1.0)
    clean = surface.accuracy_at(surface.weights)
    found = []
    for done in range(1, copies + 1):
        found.append(surface.accuracy_at(move_by(surface, scale * gaussian(surface, generator))))
        if progress is not None:
            progress(done, copies)
    return RobustAccuracy(noise, relative, clean, tuple(found))


def _root_mean_squares(surface: Surface) -> Tensor:
    """For each weight, the root mean square of the tensor it belongs to."""
    tensors = surface.split(surface.weights).values()
    return torch.cat([t.double().square().mean().sqrt().expand(t.numel()) for t in tensors]).cpu()


def robustness_figure(results: Mapping[str, Sequence[RobustAccuracy]]) -> Figure:
    """Accuracy against noise with one standard deviation to either side.

    Args:
        results: for each name, one result a noise level.
    """
    figure, axes = new_figure("Noise on the weights", "standard deviation", "accuracy")
    for name, levels in results.items():
        axes.errorbar(
            [level.noise for level in levels],
            [level.mean for level in levels],
            yerr=[level.deviation for level in levels],
            marker="o",
            capsize=3,
            label=name,
        )
    axes.legend()
    return figure
