"""Prints paragraphs and JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from steppe.utils.formatting import finite

_WIDTH = 88


def paragraph(text: str) -> str:
    """Text wrapped to a readable width."""
    return textwrap.fill(text, _WIDTH)


def print_json(result: Mapping[str, Any]) -> None:
    """Print a result as JSON; infinity and NaN become null."""
    print(json.dumps(finite(dict(result)), indent=2, ensure_ascii=False, allow_nan=False))
