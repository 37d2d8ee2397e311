"""Place 5: the protocol of noise."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from steppe.randomness import Source


@runtime_checkable
class Noise(Protocol):
    """Noise, with which an accumulator starts, or which is added at the end."""

    @property
    def grid(self) -> bool:
        """Whether sum and noise are rounded to a common grid before they are added."""

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        """The schedule as (number of steps, factor on the plan's noise multiplier)."""

    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        """Overwrite the accumulator with the state that clipped gradients are added to."""

    def finish_(self, buffer: Tensor, std: float, sensitivity: float, source: Source) -> Tensor:
        """Turn the accumulator into what may leave the step."""
