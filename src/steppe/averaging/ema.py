"""Exponential moving average: the past counts less and less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from steppe.averaging.running import Running
from steppe.utils.validation import fail, non_negative


class EMA(Running):
    """average ← μ·average + (1 − μ)·weights: the decay μ is the weight of the past.

    The first update is taken as it is. With warm-up, the update after t others uses
    μ = min(decay, (1 + t)/(10 + t)), so that the average forgets the beginning of a short run: a
    decay of 0.99 is reached after 890 updates, one of 0.999 after 8,990. (The formula printed in
    Recycling Scraps gives the two weights the other way round; the code behind its results does
    not.)

    Args:
        model: the model to average.
        decay: the weight of the past, in [0, 1).
        warmup: whether the decay grows from the first update on.
        average_buffers: names of floating-point buffers to average; all others are copied.

    Guarantees:
        Post-processing: no privacy cost.

    Examples:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = EMA(model, decay=0.75, warmup=False)
        >>> for value in (0.0, 4.0):
        ...     _ = torch.nn.init.constant_(model.weight, value)
        ...     average.update(model)
        >>> average.weights()["weight"].item()
        1.0
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float,
        warmup: bool = True,
        average_buffers: Sequence[str] = (),
    ) -> None:
        super().__init__(model, average_buffers)
        self.decay = check_decay(decay)
        if warmup not in (True, False):  # 1 and 0 are, as names and files write them
            raise fail(
                "warmup",
                warmup,
                "must be True or False, since its length follows from the decay",
                "use True",
            )
        self.warmup = bool(warmup)

    def _weight(self, update: int, count: int) -> float:
        return 1 - decay_at(self.decay, self.warmup, update - 1) if count else 1.0

    def settings(self) -> dict[str, float]:
        return {"decay": self.decay, "warmup": float(self.warmup)}


def decay_at(decay: float, warmup: bool, before: int) -> float:
    """The weight of the past for the update that follows `before` others.

    Examples:
        >>> decay_at(0.9, True, 1), decay_at(0.9, True, 1000)
        (0.18181818181818182, 0.9)
    """
    return min(decay, (1 + before) / (10 + before)) if warmup else decay


def check_decay(decay: Any) -> float:
    """A weight of the past, in [0, 1)."""
    number = non_negative("decay", decay, "give a value in [0, 1)")
    if number >= 1:
        rule = "must lie in [0, 1)"
        raise fail("decay", decay, rule, "use a value like 0.99")
    return number
