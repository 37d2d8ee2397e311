"""Adaptive sharpness-aware minimisation on public data."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.pretraining.method import Gradients, StatelessRun, Tensors
from steppe.pretraining.perturbation import to_length
from steppe.utils import validation


@dataclass(frozen=True)
class ASAM:
    """Climb by ρ in weights that are scaled by their own size, and take the gradient there.

    Kwon et al., ASAM: Adaptive Sharpness-Aware Minimization, 2021: with T = |w| + η, the offset is
    ρ·T²g / ‖Tg‖, so that it does not depend on the scale of a layer. Two gradients of each record
    of the batch per step.

    Args:
        radius: ρ; about ten times that of `SAM`.
        floor: η, added to the size of every weight.
    """

    radius: float = 0.5
    floor: float = 0.01

    def __post_init__(self) -> None:
        validation.positive("radius", self.radius, "0.5 is common; use Standard() for none")
        validation.positive("floor", self.floor, "0.01 is common")

    @property
    def perturbation_batch(self) -> int:
        """It draws no batch of its own."""
        return 0

    def begin(self, weights: Tensors) -> ASAMRun:
        """Start a run over these weights."""
        return ASAMRun(weights, self)


class ASAMRun(StatelessRun):
    """Climbs in every step."""

    def __init__(self, weights: Tensors, method: ASAM) -> None:
        self._weights, self._method = weights, method

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """ρ·T²g / ‖Tg‖ for the gradient g of the update batch."""
        sizes = [weight.detach().abs() + self._method.floor for weight in self._weights]
        found = gradients.of_update_batch()
        scaled = [size * one for size, one in zip(sizes, found, strict=True)]
        climbed = to_length(scaled, self._method.radius)
        return [size * one for size, one in zip(sizes, climbed, strict=True)]
