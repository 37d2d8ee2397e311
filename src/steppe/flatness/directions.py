"""Does each step point where the last one did? What sharpness-aware points rely on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steppe.flatness.figures import new_figure
from steppe.utils import validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cosines:
    """Cosines between directions that follow each other.

    Attributes:
        values: one for each direction but the first.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the whole run."""
        return statistics.fmean(self.values)


class CosineTrack:
    """Compares every direction with the one before; keeps a copy of the last only.

    A direction with noise is a private release, so its cosines cost nothing more. Before the noise
    (as the paper's figure has it) they depend on the records: public data only, not covered by the
    guarantee.

    Examples:
        >>> track = CosineTrack()
        >>> for direction in ([1.0, 0.0], [1.0, 0.0], [0.0, 2.0]):
        ...     track.update(torch.tensor(direction))
        >>> track.result()
        Cosines(values=(1.0, 0.0))
    """

    def __init__(self) -> None:
        self._last: Tensor | None = None
        self._values: list[float] = []

    def update(self, direction: Tensor) -> None:
        """Take in the next direction.

        Args:
            direction: one flat vector. A zero vector points nowhere; its cosine counts as 0.
        """
        new = direction.detach().double().flatten().clone()
        length = torch.linalg.vector_norm(new)
        if not bool(torch.isfinite(length)):
            raise validation.fail("direction", length.item(), "must be finite", "check the step")
        if self._last is not None and self._last.shape != new.shape:
            rule = f"must have {len(self._last)} entries like the one before"
            raise validation.fail("direction", tuple(direction.shape), rule, "use a new track")
        if length > 0:
            new /= length
        if self._last is not None:
            self._values.append(torch.dot(self._last, new).item())
        self._last = new

    def result(self) -> Cosines:
        """What was found so far."""
        return Cosines(tuple(self._values))


def cosine_figure(results: Mapping[str, Cosines]) -> Figure:
    """Cosines over the run, in percent of its steps so that runs of different length compare.

    Args:
        results: by the name to print.
    """
    figure, axes = new_figure("Consecutive directions", "progress (%)", "cosine")
    for name, result in results.items():
        steps = len(result.values)
        axes.plot([100 * (i + 1) / steps for i in range(steps)], result.values, label=name)
    axes.legend()
    return figure
