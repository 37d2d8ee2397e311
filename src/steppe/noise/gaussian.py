"""Place 5, the plain choice: independent Gaussian noise, the same in every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussian noise with standard deviation multiplier × sensitivity."""

    grid: bool = False

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        """The schedule as (number of steps, factor on the plan's noise multiplier)."""
        return ((steps, 1.0),)
