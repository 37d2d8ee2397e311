"""One cell of a table as a number: its value, or the index of its category or label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from steppe.data.scaling import LARGEST

# What programs write where a value is missing.
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
# NaN for a missing value, None for an invalid one.
Reader = Callable[[str], float | None]


def number(cell: str) -> float | None:
    """A number; NaN for a missing value, None for what is not a finite float32.

    Examples:
        >>> number("-4e2"), number("NA"), number("much"), number("1e300")
        (-400.0, nan, None, None)
    """
    try:
        value = float(cell)
    except ValueError:
        return math.nan if cell.lower() in _MISSING else None
    return None if abs(value) > LARGEST else value


def category(texts: Sequence[str]) -> Reader:
    """Reads a text as the index of its category.

    Examples:
        >>> read = category(["f", "m"])
        >>> read("m"), read(""), read("x")
        (1.0, nan, None)
    """
    places = {text: float(place) for place, text in enumerate(texts)}

    def read(cell: str) -> float | None:
        found = places.get(cell)
        return math.nan if found is None and cell.lower() in _MISSING else found

    return read


def label(classes: int | Sequence[str] | None) -> Reader:
    """Reads a target: one of the declared classes, or without classes any number.

    Examples:
        >>> label(["no", "yes"])("yes"), label(3)("2"), label(3)("3"), label(None)("310.5")
        (1.0, 2.0, None, 310.5)
    """
    if classes is None:
        return number
    if not isinstance(classes, int):
        return {text: float(place) for place, text in enumerate(classes)}.get

    def read(cell: str) -> float | None:
        value = number(cell)
        return value if value in range(classes) else None  # 3.0 is 3; a fraction is in no range

    return read
