"""Adversarial model perturbation on public data."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.pretraining.method import Gradients, StatelessRun, Tensors
from steppe.pretraining.perturbation import Ascent


@dataclass(frozen=True)
class AMP:
    """An ascent step on the update batch, each tensor capped by itself; the gradient there.

    Zheng et al., Regularizing Neural Networks via Adversarial Model Perturbation, 2021, with one
    inner step, as its released code caps it: a tensor's perturbation is scaled down to γ if it is
    longer, and stays as it is otherwise. Two gradients of each record of the batch per step.

    Args:
        rate: η₁ of the ascent step.
        cap: γ, the largest l2 norm of each tensor's perturbation.
    """

    rate: float = 1.0
    cap: float = 0.5

    def __post_init__(self) -> None:
        Ascent(self.rate, self.cap, "tensor")

    @property
    def perturbation_batch(self) -> int:
        """It draws no batch of its own."""
        return 0

    def begin(self, weights: Tensors) -> AMPRun:
        """Start a run over these weights."""
        return AMPRun(Ascent(self.rate, self.cap, "tensor"))


class AMPRun(StatelessRun):
    """Perturbs in every step."""

    def __init__(self, ascent: Ascent) -> None:
        self._ascent = ascent

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """The capped ascent step on the update batch."""
        return self._ascent.of(gradients.of_update_batch())
