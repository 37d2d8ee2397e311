"""What is agreed before a run in the shape of Opacus begins."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.compat.bounds import Bounds
from steppe.compat.budget import Budget


@dataclass(frozen=True)
class Constants:
    """The public constants of a run.

    Attributes:
        noise_multiplier: σ, the noise on the sum in units of the clipping bound.
        bounds: the clipping bound, or one for each weight.
        expected_batch_size: what the noised sum is divided by.
        sample_rate: the probability that a record takes part in a step, exactly as it is drawn.
        averaged: whether the user's loss is the mean over the batch, not the sum.
        budget: what the steps may cost, with all that the accountant holds; None without one.
    """

    noise_multiplier: float
    bounds: Bounds
    expected_batch_size: float
    sample_rate: float
    averaged: bool
    budget: Budget | None

    @property
    def max_grad_norm(self) -> float:
        """C, the largest norm of what a record adds."""
        return self.bounds.total

    def visible(self) -> dict[str, float]:
        """What Opacus shows as attributes of the optimizer."""
        names = ("noise_multiplier", "max_grad_norm", "expected_batch_size")
        return {name: getattr(self, name) for name in names}
