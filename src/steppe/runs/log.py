"""The run's log: one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Log:
    """Appends lines that other programs may read during the run.

    Args:
        path: the file; only its owner can read it.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            self._file.write(b"\n")  # a killed run left an incomplete line

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line of public values."""
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log. Incomplete lines of a killed run are skipped.

    Args:
        path: the file.

    Returns:
        One mapping for each line, oldest first.
    """
    lines = []
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
