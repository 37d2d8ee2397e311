"""The argument of a callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class StepInfo:
    """The run after one of its steps. Everything in it is public.

    Args:
        step: the number of steps so far.
        steps: the number of steps in the plan.
        epsilon: an upper bound on their ε at the plan's δ; infinite with seeded noise.
        seconds: time spent training.
        model: the model; do not change it.
        table: the rows of the evaluation after this step; empty if there was none.
    """

    step: int
    steps: int
    epsilon: float
    seconds: float
    model: nn.Module
    table: tuple[Mapping[str, Any], ...]


# Called after every step; True ends the run there.
Callback = Callable[[StepInfo], bool | None]
