"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from steppe.errors import MisuseError

_WRITING = ".writing-"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, readable by its owner only, so that no reader ever sees a part of it.

    The data reach the disk before the name does, and the name before the call returns: a crash
    leaves the old file or the new one.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=_WRITING, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:  # mkstemp gives mode 0600
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were added to or removed from a folder survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def single_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock inside the block; readers never need it."""
    import fcntl  # only writers need it, so that a store can be read where there is no flock

    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MisuseError(
                f"folder={str(folder)!r}: another writer is at work here; "
                "give each run a folder of its own."
            ) from None
        for leftover in folder.glob(f"{_WRITING}*"):
            leftover.unlink()  # of a writer that was killed: the lock says that none is at work
        yield
    finally:
        unlock(descriptor)


def unlock(descriptor: int) -> None:
    """Give a lock back. Closing is not enough: forked processes hold the same open file."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
