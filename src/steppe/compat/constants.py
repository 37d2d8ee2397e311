"""The public constants of a run of `steppe.compat`."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.compat.bounds import Bounds
from steppe.compat.budget import Budget


@dataclass(frozen=True)
class Constants:
    """The public constants of a run.

    Attributes:
        noise_multiplier: σ, the noise on the sum in units of the clipping norm.
        bounds: the clipping norm, or one for each weight.
        expected_batch_size: the divisor of the noised sum.
        sample_rate: the exact probability that a record takes part in a step.
        averaged: whether the user's loss is a mean over the batch, and not a sum.
        budget: limits the cost of all steps in the accountant; None for no limit.
    """

    noise_multiplier: float
    bounds: Bounds
    expected_batch_size: float
    sample_rate: float
    averaged: bool
    budget: Budget | None

    @property
    def max_grad_norm(self) -> float:
        """C, the largest norm of a clipped per-example gradient."""
        return self.bounds.total

    @property
    def adapts(self) -> bool:
        """Whether the clipping norm moves."""
        return self.bounds.adaptive is not None

    def visible(self) -> dict[str, float]:
        """The constants that Opacus sets as attributes of the optimizer."""
        names = ("noise_multiplier", "max_grad_norm", "expected_batch_size")
        return {name: getattr(self, name) for name in names}
