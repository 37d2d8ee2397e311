"""Place 2, the plain choice: the gradient is taken at the current weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import MovableWeights, StatelessPointRun


@dataclass(frozen=True)
class Here:
    """DP-SGD: one query, at the current weights.

    Guarantees:
        One query of the batch per step (`queries` = 1).

    Examples:
        >>> Here().queries
        1
    """

    @property
    def queries(self) -> int:
        """How many queries of the same batch one step makes."""
        return 1

    def begin(self, weights: MovableWeights) -> HereRun:
        """Start a run. It has no state."""
        del weights
        return HereRun()


class HereRun(StatelessPointRun):
    """The weights are not moved."""

    def offset(self, answers: Sequence[Tensor]) -> None:
        """The weights are not moved."""

    def gradient(self, answers: Sequence[Tensor]) -> Tensor:
        """The one answer."""
        return answers[0]
