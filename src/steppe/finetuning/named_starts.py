"""Starts by name, and by the path of their file."""

from __future__ import annotations

from pathlib import Path

from steppe.data import fetch_start, start_names
from steppe.errors import DataError
from steppe.starts import Start, read_start


def find_start(given: str | Path) -> Start:
    """A start by its name, or by the path of its file.

    Args:
        given: one of `steppe.data.start_names()`, which is fetched the first time; or a file.
    """
    if str(given) in start_names():
        return read_start(fetch_start(str(given)))
    if not Path(given).expanduser().exists() and Path(given).suffix != ".safetensors":
        rule = f"is neither a file nor one of {', '.join(start_names())}"
        raise DataError.about("start", str(given), rule, "give a start file, or one of these names")
    return read_start(given)
