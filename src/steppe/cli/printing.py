"""How results look: paragraphs and JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from steppe.utils.formatting import finite

_WIDTH = 88


def paragraph(text: str) -> str:
    """Running text in lines that are short enough to read."""
    return textwrap.fill(text, _WIDTH)


def print_json(result: Mapping[str, Any]) -> None:
    """A result for other programs; infinity and NaN, which JSON does not know, become null."""
    print(json.dumps(finite(dict(result)), indent=2, ensure_ascii=False, allow_nan=False))
