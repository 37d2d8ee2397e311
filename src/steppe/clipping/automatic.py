"""Place 4: per-example gradients are normalised instead of clipped."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.clipping.clip import NormClip
from steppe.utils import validation

# Larger factors would overflow float32; their gradients are practically zero.
_LARGEST_FACTOR = 1e30


@dataclass(frozen=True)
class Automatic(NormClip):
    """Multiply a record's gradient by bound / (norm + gamma).

    No threshold is left to tune: with SGD the bound is a factor on the learning rate, with Adam it
    has no effect at all. Bu et al., Automatic Clipping: Differentially Private Deep Learning Made
    Easier and Stronger, 2023.

    Args:
        bound: the length that long gradients are brought to, and the l2 sensitivity.
        gamma: gradients much shorter than gamma keep their size (the paper's AUTO-S), so training
            can converge; with 0 all norms become the bound (AUTO-V).

    Guarantees:
        Adding or removing one record moves the clipped sum by at most `sensitivity` in l2 norm.
        A record whose gradient is zero or not finite adds zero.

    Examples:
        >>> import torch
        >>> Automatic(1.0, gamma=0.5).factors(torch.tensor([0.0, 0.5, 9.5, float("inf")]))
        tensor([2.0000, 1.0000, 0.1000, 0.0000])
    """

    bound: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        bound = validation.positive("Automatic.bound", self.bound, "a common choice is 1")
        gamma = validation.non_negative("Automatic.gamma", self.gamma, "a common choice is 0.01")
        object.__setattr__(self, "bound", bound)
        object.__setattr__(self, "gamma", gamma)

    def factors(self, norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied by, from its norm; NaN where that is NaN."""
        factors = self.bound / (norms + self.gamma)
        return factors.clamp_(max=_LARGEST_FACTOR)  # of norm 0 without gamma: that
