"""Starts by name, and by the path of their file."""

from __future__ import annotations

from pathlib import Path

from steppe.starts import Start, read_start


def find_start(given: str | Path) -> Start:
    """A start by its path."""
    return read_start(given)
