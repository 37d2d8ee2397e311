"""The folder of a run: who may look into it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from steppe.training.folder import RunFolder, write_weights


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_is_for_its_owner_only_however_open_new_folders_are(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "runs" / "first")
        with folder.held():
            write_weights(folder.average("EMA"), {}, {}, None)
    finally:
        os.umask(before)
    assert mode(folder.path) == 0o700
    assert mode(folder.averages) == 0o700
    assert mode(folder.average("EMA")) == 0o600
    assert mode(folder.path / ".lock") == 0o600
