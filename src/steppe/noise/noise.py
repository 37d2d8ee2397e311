"""Place 5: the protocol of noise, and of the noise of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from steppe.accounting import Participation
from steppe.randomness import Source


class NoiseRun(Protocol):
    """A noise at work in one run, with which an accumulator starts, or which is added at the end.

    Guarantees:
        `state` may be SECRET: a correlated noise keeps noise that later steps contain again. It is
        written where a run is resumed from and nowhere else.
    """

    @property
    def grid(self) -> bool:
        """Whether sum and noise are rounded to a common grid before they are added."""

    def at(self, step: int, query: int) -> None:
        """Say which query the next noise is for, both counted from 0."""

    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        """Overwrite the accumulator with the state that clipped gradients are added to."""

    def finish_(self, buffer: Tensor, std: float, sensitivity: float, source: Source) -> Tensor:
        """Turn the accumulator into what may leave the step."""

    def state(self) -> dict[str, Any]:
        """What later noise depends on, besides fresh randomness; empty for independent noise."""

    def load(self, state: Mapping[str, Any], step: int, like: Tensor) -> None:
        """Continue after `step` steps; `like` is a vector of the run's noise."""


@runtime_checkable
class Noise(Protocol):
    """A noise: the public constants of how it is added."""

    @property
    def grid(self) -> bool:
        """Whether sum and noise are rounded to a common grid before they are added."""

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        """The schedule as (number of steps, factor on the plan's noise multiplier)."""

    def begin(self, steps: int, participation: Participation, queries: int = 1) -> NoiseRun:
        """The noise of one run of so many steps, in which records take part like this."""
