"""Formats numbers and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def rounded_up(value: float | None, digits: int = 3) -> str:
    """A bound, rounded so that what is printed is a bound too.

    >>> rounded_up(1.99951), rounded_up(2.0), rounded_up(float("inf")), rounded_up(None)
    ('2.000', '2.000', '∞', 'none')
    """
    if value is None:
        return "none"
    if not math.isfinite(value):
        return "∞"
    scale = 10.0**digits
    # Rounding first keeps 2.0000000001, which is 2 on paper, from becoming 2.001.
    return f"{math.ceil(round(value * scale, 6)) / scale:.{digits}f}"


def first_line(error: Exception) -> str:
    """The first line of an error; the name of its type if it has no message.

    >>> first_line(ValueError("no\\nand no")), first_line(KeyError())
    ('no', 'KeyError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def as_said(error: Exception) -> str:
    """The type and message of a foreign error, to be shown below a line of ours.

    >>> as_said(ValueError("no\\nand no")), as_said(KeyError())
    ('ValueError: no\\nand no', 'KeyError')
    """
    return f"{type(error).__name__}: {error}".rstrip(": \n")


def finite(value: Any) -> Any:
    """The value with None for numbers that JSON cannot hold.

    >>> finite({"loss": float("nan"), "steps": (1, 2.0)})
    {'loss': None, 'steps': [1, 2.0]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows in columns, the first row as the head.

    Args:
        rows: equally long.
        left: how many columns hold words, which are aligned left; numbers are aligned right.

    Returns:
        The lines without trailing blanks.

    Examples:
        >>> print(table([("model", "accuracy"), ("last", "91.2 %")]))
        model  accuracy
        last     91.2 %
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
