"""Place 1, who takes part: every record tosses its own coin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Poisson:
    """Each record joins each step independently with the plan's rate."""


@dataclass(frozen=True)
class CappedPoisson:
    """Poisson sampling with at most `cap` records taking part (fixed shapes)."""

    cap: int | None = None
