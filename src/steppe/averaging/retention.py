"""Which checkpoints of a store stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steppe.utils.validation import positive_integer


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay. With neither rule all of them do; with both, what either keeps.

    Args:
        last: the newest so many, of each kind.
        every: steps that are multiples of this.

    Examples:
        >>> Keep(last=2, every=10).kept([5, 10, 15, 20, 25, 30, 35])
        [10, 20, 30, 35]
    """

    last: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        for name in ("last", "every"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name), "leave it out or give 1 or more")

    def kept(self, steps: Sequence[int]) -> list[int]:
        """The steps that stay, in order."""
        if self.last is None and self.every is None:
            return list(steps)
        newest = set(steps[-self.last :]) if self.last else set()
        return [s for s in steps if s in newest or (self.every and s % self.every == 0)]
