"""What one measurement found."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A check fails where chance alone would give its measurement less than once in 10^6 runs.
SURPRISE = 6.0


@dataclass(frozen=True)
class Result:
    """One measurement and the bound it must keep.

    Attributes:
        name: what was measured.
        passed: whether `measured` is at most `bound`; never true for NaN.
        measured: the worst value found.
        bound: the largest value that the guarantee allows.
        text: one sentence for the reader.

    Examples:
        >>> print(Result.at_most("sensitivity", 0.5, 1.0, "one record moved the sum by 0.5 C"))
        pass  sensitivity: one record moved the sum by 0.5 C (0.5, at most 1)
    """

    name: str
    passed: bool
    measured: float
    bound: float
    text: str

    @classmethod
    def at_most(cls, name: str, measured: float, bound: float, text: str) -> Result:
        """The result of a measurement that must not exceed a bound."""
        return cls(name, measured <= bound, measured, bound, text)

    def __str__(self) -> str:
        verdict = "pass" if self.passed else "FAIL"
        return f"{verdict}  {self.name}: {self.text} ({self.measured:.4g}, at most {self.bound:g})"


def surprise(p_value: float) -> float:
    """How unlikely a measurement is, as the number of zeros of its p-value.

    Args:
        p_value: probability of a value at least as extreme; NaN counts as impossible.

    Examples:
        >>> surprise(1e-3)
        3.0
    """
    return max(0.0, -math.log10(max(p_value, 1e-300))) if p_value >= 0 else math.inf
