"""Place 4, the plain choice: one bound on the whole gradient of a record."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.clipping.clip import NormClip
from steppe.utils import validation


@dataclass(frozen=True)
class Flat(NormClip):
    """Scale a record's gradient down to l2 norm at most `bound`.

    Args:
        bound: the largest norm C that one record's gradient may have.

    Guarantees:
        Adding or removing one record moves the clipped sum by at most `sensitivity` in l2 norm.
        A record whose norm is not finite adds zero.

    Examples:
        >>> import torch
        >>> Flat(1.0).factors(torch.tensor([0.5, 2.0, float("inf")]))
        tensor([1.0000, 0.5000, 0.0000])
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        bound = validation.positive("Flat.bound", self.bound, "a common start is 0.1 to 1")
        # Any real number is accepted; a plan prints and hashes it as a float.
        object.__setattr__(self, "bound", bound)

    def factors(self, norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied by, from its norm; NaN where that is NaN."""
        return norms.reciprocal().mul_(self.bound).clamp_(max=1.0)  # of norm 0: 1
