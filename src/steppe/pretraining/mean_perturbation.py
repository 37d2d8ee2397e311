"""DPAdapter with a running mean of small-batch gradients in place of a large batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from steppe.pretraining.dp_adapter import whole_number
from steppe.pretraining.method import Gradients, Tensors
from steppe.pretraining.perturbation import Ascent
from steppe.utils import validation


@dataclass(frozen=True)
class MeanPerturbation:
    """The ascent step of `DPAdapter` along a running mean of the updates' gradients.

    The mean of gradients of m₂ records with decay β varies as little as one of m₂·(1 + β)/(1 − β)
    records, but is a few steps old, and was taken at perturbed weights. It costs no further
    gradient: a step computes as many as `Standard`.

    Args:
        decay: β, the weight of the past.
        rate, cap, scope, warmup: as for `DPAdapter`. The mean begins during the warm-up.
    """

    decay: float = 0.98
    rate: float = 1.0
    cap: float | None = 2.0
    scope: str = "model"
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.decay:
            validation.open_unit("decay", self.decay, "0.98 averages about 100 batches")
        Ascent(self.rate, self.cap, self.scope)
        whole_number("warmup", self.warmup)

    @property
    def perturbation_batch(self) -> int:
        """It draws no batch of its own."""
        return 0

    def begin(self, weights: Tensors) -> MeanPerturbationRun:
        """Start a run over these weights."""
        return MeanPerturbationRun(self)


class MeanPerturbationRun:
    """Keeps the running mean, and corrects it for its start at zero."""

    def __init__(self, method: MeanPerturbation) -> None:
        self._method = method
        self._ascent = Ascent(method.rate, method.cap, method.scope)
        self._sum: list[Tensor] = []
        self._seen = 0

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """The capped ascent step along the mean of what was seen."""
        if step < self._method.warmup or not self._seen:
            return None
        weight = 1.0 - self._method.decay**self._seen
        return self._ascent.of([one / weight for one in self._sum])

    def observe(self, gradient: Tensors) -> None:
        """Take the update's gradient into the mean."""
        decay = self._method.decay
        if not self._sum:
            self._sum = [one.new_zeros(one.shape) for one in gradient]
        for kept, new in zip(self._sum, gradient, strict=True):
            kept.mul_(decay).add_(new, alpha=1.0 - decay)
        self._seen += 1

    def state_dict(self) -> dict[str, Any]:
        """The mean, and how many gradients are in it."""
        return {"sum": self._sum, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a mean."""
        self._sum, self._seen = list(state["sum"]), int(state["seen"])
