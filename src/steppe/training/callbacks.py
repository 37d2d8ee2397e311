"""What a callback sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class StepInfo:
    """The run after one of its steps. Everything in it is public.

    Args:
        step: steps of the plan that are gone.
        steps: steps of the plan.
        epsilon: what these steps cost at the plan's δ, at most; infinite with noise from a seed.
        seconds: time spent training.
        model: the model, to look at.
        table: the rows of the evaluation after this very step; empty if there was none.
    """

    step: int
    steps: int
    epsilon: float
    seconds: float
    model: nn.Module
    table: tuple[Mapping[str, Any], ...]


# Called after every step; True ends the run there.
Callback = Callable[[StepInfo], bool | None]
