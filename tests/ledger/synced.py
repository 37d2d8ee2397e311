"""What was in a file each time a file was synced to the disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from steppe.ledger import chain


def contents_when_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A list that grows with every sync of a file from now on; those of folders do not count."""
    synced: list[bytes] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            synced.append(path.read_bytes())
        fsync(descriptor)

    monkeypatch.setattr(chain.os, "fsync", seen)
    return synced
