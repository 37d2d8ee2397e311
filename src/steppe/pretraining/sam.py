"""Sharpness-aware minimisation on public data."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.pretraining.method import Gradients, StatelessRun, Tensors
from steppe.pretraining.perturbation import to_length
from steppe.utils import validation


@dataclass(frozen=True)
class SAM:
    """Climb by ρ along the gradient of the update batch, and take the gradient there.

    Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, 2021. Two
    gradients of each record of the batch per step. The private one is `steppe.SAM`.

    Args:
        radius: ρ, the l2 length of the climb over all weights together.
    """

    radius: float = 0.05

    def __post_init__(self) -> None:
        validation.positive("radius", self.radius, "0.05 is common; use Standard() for none")

    @property
    def perturbation_batch(self) -> int:
        """It draws no batch of its own."""
        return 0

    def begin(self, weights: Tensors) -> PublicSAMRun:
        """Start a run over these weights."""
        return PublicSAMRun(self.radius)


class PublicSAMRun(StatelessRun):
    """Climbs in every step."""

    def __init__(self, radius: float) -> None:
        self._radius = radius

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """ρ along the gradient of the update batch."""
        return to_length(gradients.of_update_batch(), self._radius)
