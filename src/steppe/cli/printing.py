"""How results look: tables, paragraphs, JSON."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH = 88


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


def paragraph(text: str) -> str:
    """Running text in lines that are short enough to read."""
    return textwrap.fill(text, _WIDTH)


def print_json(result: Mapping[str, Any]) -> None:
    """A result for other programs; infinity and NaN, which JSON does not know, become null."""
    print(json.dumps(_finite(dict(result)), indent=2, ensure_ascii=False, allow_nan=False))


def rounded_up(value: float, digits: int = 3) -> str:
    """A bound, rounded so that what is printed is a bound too.

    >>> rounded_up(1.99951), rounded_up(float("inf"))
    ('2.000', '∞')
    """
    if math.isinf(value):
        return "∞"
    scale = 10.0**digits
    return f"{math.ceil(round(value * scale, 6)) / scale:.{digits}f}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
