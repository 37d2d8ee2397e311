"""Training as usual: the gradient at the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.pretraining.method import Gradients, StatelessRun, Tensors


@dataclass(frozen=True)
class Standard:
    """Training without perturbation. One gradient of each record of the batch per step."""

    @property
    def perturbation_batch(self) -> int:
        """It draws no batch of its own."""
        return 0

    def begin(self, weights: Tensors) -> StandardRun:
        """Start a run over these weights."""
        return StandardRun()


class StandardRun(StatelessRun):
    """Never moves the weights."""

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """None."""
        return None
