"""Polynomial-decay averaging: update i weighs about i to the power γ."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from steppe.averaging.running import Running
from steppe.utils.validation import non_negative


class PolynomialDecay(Running):
    """PDA: average ← average + (γ + 1)/(t + γ)·(weights − average) at update t.

    γ = 0 is the mean of all updates; the larger γ, the more the late ones count. After T updates
    update i has a weight proportional to Γ(i + γ)/Γ(i), which is about i^γ: half of the weight
    lies in the last share 1 − 2^(−1/(γ + 1)) of the run, however long it is. Of weights in float32
    it misses drifts below 3e-8 T/(γ + 1) of a weight.

    Args:
        model: the model to average.
        gamma: the power, 0 or more.
        average_buffers: names of floating-point buffers to average; all others are copied.

    Guarantees:
        Post-processing: no privacy cost.

    Examples:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = PolynomialDecay(model, gamma=1)
        >>> for value in (1.0, 2.0, 3.0):  # weights 1/6, 2/6, 3/6
        ...     _ = torch.nn.init.constant_(model.weight, value)
        ...     average.update(model)
        >>> round(average.weights()["weight"].item(), 6)
        2.333333
    """

    def __init__(self, model: nn.Module, gamma: float, average_buffers: Sequence[str] = ()) -> None:
        super().__init__(model, average_buffers)
        self.gamma = non_negative("gamma", gamma)

    def _weight(self, update: int, count: int) -> float:
        del count
        return (self.gamma + 1) / (update + self.gamma)

    def settings(self) -> dict[str, float]:
        return {"gamma": self.gamma}
