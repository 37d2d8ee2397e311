"""Place 4: the protocol of a clip."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Clip(Protocol):
    """How much a record may say.

    Guarantees:
        For any norms, adding or removing one record moves Σᵢ factorᵢ gᵢ by at most `sensitivity`.
    """

    @property
    def sensitivity(self) -> float:
        """The largest l2 change of the clipped sum when one record comes or goes."""

    def factors(self, norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied by; 0 where the norm is not finite."""
