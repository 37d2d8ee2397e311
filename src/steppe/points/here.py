"""Place 2, the plain choice: the gradient is taken at the current weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import Ask, MovableWeights, Walk


@dataclass(frozen=True)
class Here:
    """DP-SGD: ask once, at the weights as they are.

    Guarantees:
        One query of the batch per step (`queries` = 1).

    Examples:
        >>> Here().queries
        1
    """

    @property
    def queries(self) -> int:
        """How often one step asks the same batch."""
        return 1

    def begin(self, weights: MovableWeights) -> Walk:
        """The state of one run: none is needed."""
        del weights
        return _ask_once


def _ask_once(ask: Ask) -> Tensor:
    return ask()
