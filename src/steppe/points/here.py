"""Place 2, the plain choice: the gradient is taken at the current weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Here:
    """DP-SGD: ask once, at the weights as they are.

    Guarantees:
        One query of the batch per step (`queries` = 1).
    """

    @property
    def queries(self) -> int:
        """How often one step asks the same batch."""
        return 1
