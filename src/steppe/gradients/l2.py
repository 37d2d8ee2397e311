"""λ, the strength of the term λθ that joins every per-example gradient before the clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steppe.utils import name_prefixes, validation

Strengths = Mapping[str, float] | name_prefixes.Pairs
"""λ by name prefix."""


def strengths(l2: float | Strengths, names: Mapping[str, object]) -> dict[str, float]:
    """λ of every weight, by name.

    Examples:
        >>> strengths({"head": 0.1}, {"body.weight": ..., "head.weight": ...})
        {'body.weight': 0.0, 'head.weight': 0.1}
    """
    if isinstance(l2, Mapping | tuple):
        chosen = name_prefixes.pairs("l2", l2, strength)
        found = name_prefixes.match("l2", chosen, names)
        return {name: 0.0 if p is None else dict(chosen)[p] for name, p in found.items()}
    return dict.fromkeys(names, float(l2))


def strength(name: str, value: Any, remedy: str = "a common range is 1e-6 to 0.1") -> float:
    """λ: finite, not negative, and small enough that float32 can hold its square."""
    number = validation.non_negative(name, value, remedy)
    if number > _LARGEST_STRENGTH:
        raise validation.fail(name, value, f"must be at most {_LARGEST_STRENGTH:g}", remedy)
    return number


_LARGEST_STRENGTH = 1e18
