"""Stochastic weight averaging: the mean of the weights at the end of every cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from steppe.averaging.running import Running
from steppe.utils.validation import fail, missing, positive_integer


class SWA(Running):
    """The mean of the weights of every `cycle`-th update after a warm-up (DP-SWA, seed 000).

    With W updates of warm-up, update i counts when i ≥ W and i − W is a multiple of the cycle: the
    weights at the end of the warm-up are the first to count, and the initial weights never do. The
    mean of the last k of T updates is `SWA(model, warmup=T - k + 1)`, which needs one copy where
    `Window` needs k. Of weights in float32 a mean of n updates misses drifts below 3e-8 n of a
    weight: a longer cycle serves runs of many thousand steps.

    Args:
        model: the model to average.
        cycle: how many updates from one counted update to the next.
        warmup: a number of updates, or a fraction of `steps` in [0, 1) (a float).
        steps: how many updates the run has; needed for a fraction only.
        average_buffers: names of floating-point buffers to average; all others are copied.

    Guarantees:
        Post-processing: no privacy cost.

    Examples:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = SWA(model, cycle=2, warmup=0.4, steps=10)
        >>> for i in range(1, 11):
        ...     _ = torch.nn.init.constant_(model.weight, i)
        ...     average.update(model)
        >>> average.covers, average.weights()["weight"].item()  # 4, 6, 8, 10
        (4, 7.0)
    """

    def __init__(
        self,
        model: nn.Module,
        cycle: int = 1,
        warmup: float = 0,
        steps: int | None = None,
        average_buffers: Sequence[str] = (),
    ) -> None:
        super().__init__(model, average_buffers)
        self.cycle = positive_integer("cycle", cycle)
        self.warmup = _warmup_updates(warmup, steps)

    def _weight(self, update: int, count: int) -> float | None:
        if update < self.warmup or (update - self.warmup) % self.cycle:
            return None
        return 1 / (count + 1)

    def settings(self) -> dict[str, float]:
        return {"cycle": self.cycle, "warmup": self.warmup}


def _warmup_updates(warmup: Any, steps: int | None) -> int:
    if isinstance(warmup, int) and not isinstance(warmup, bool) and warmup >= 0:
        if steps is not None and warmup > positive_integer("steps", steps):
            rule = f"must not be longer than the run of {steps} updates"
            raise fail("warmup", warmup, rule, "give fewer updates")
        return warmup
    if not isinstance(warmup, float) or not 0 <= warmup < 1:
        rule = "must be a whole number of updates, or a fraction in [0, 1)"
        raise fail("warmup", warmup, rule, "give 600 for updates or 0.6 for a fraction")
    if steps is None:
        rule = "is required where warmup is a fraction of the run"
        raise missing("steps", "or give the warm-up as a number of updates", rule)
    return round(warmup * positive_integer("steps", steps))
