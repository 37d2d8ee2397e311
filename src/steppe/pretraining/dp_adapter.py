"""DPAdapter: a perturbation from a large batch, an update from a small one."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.pretraining.method import Gradients, StatelessRun, Tensors
from steppe.pretraining.perturbation import Ascent
from steppe.utils import validation


@dataclass(frozen=True)
class DPAdapter:
    """An ascent step on a large batch of its own, and the update's gradient there.

    Wang et al., DPAdapter: Improving Differentially Private Deep Learning through Noise Tolerance
    Pre-training, 2024, Algorithm 1. Every step draws `perturbation_batch` records for the
    perturbation, m₁, and takes the gradient of the run's `batch_size`, m₂, at the perturbed
    weights: with m₁ = 5,000 and m₂ = 50, a step computes 101 times as many gradients as `Standard`.

    Args:
        perturbation_batch: m₁.
        rate: η₁ of the ascent step.
        cap: γ, the largest l2 norm of the perturbation; None for no cap.
        scope: "model" caps the norm over all weights together, as the paper writes; "tensor" caps
            each tensor, as AMP does.
        warmup: steps without perturbation at the beginning.
    """

    perturbation_batch: int = 5000
    rate: float = 1.0
    cap: float | None = 2.0
    scope: str = "model"
    warmup: int = 0

    def __post_init__(self) -> None:
        validation.positive_integer("perturbation_batch", self.perturbation_batch)
        Ascent(self.rate, self.cap, self.scope)
        whole_number("warmup", self.warmup)

    def begin(self, weights: Tensors) -> DPAdapterRun:
        """Start a run over these weights."""
        return DPAdapterRun(self)


class DPAdapterRun(StatelessRun):
    """Perturbs in every step after the warm-up."""

    def __init__(self, method: DPAdapter) -> None:
        self._method = method
        self._ascent = Ascent(method.rate, method.cap, method.scope)

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """The capped ascent step on a fresh batch."""
        if step < self._method.warmup:
            return None
        return self._ascent.of(gradients.of_fresh_batch(self._method.perturbation_batch))


def whole_number(name: str, value: int) -> None:
    """Require a whole number, zero allowed."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise validation.fail(name, value, "must be a whole number of at least 0")
