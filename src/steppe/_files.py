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


class Lock:
    """The kernel's lock on a file: for one holder, and gone with the process, however that ends.

    Args:
        path: the file, made when it does not exist.

    Raises:
        BlockingIOError: somebody else holds it.
    """

    def __init__(self, path: Path) -> None:
        import fcntl  # only writers need it, so that a store can be read where there is no flock

        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _OPEN.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self._close()
            raise

    @property
    def held(self) -> bool:
        """Whether this process has it. A forked one does not."""
        return self._descriptor is not None

    def release(self) -> None:
        """Give it back, if it is held."""
        import fcntl

        if self._descriptor is not None:
            with suppress(OSError):
                # Closing is not enough while a process that was just forked has the file too.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        _OPEN.discard(self)


_OPEN: set[Lock] = set()


def _after_fork_in_child() -> None:
    # A forked process has the same open files. The worker of a loader would hold the locks of a
    # run that was killed until it notices.
    for lock in tuple(_OPEN):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def single_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock inside the block; readers never need it."""
    try:
        lock = Lock(folder / ".lock")
    except BlockingIOError:
        raise MisuseError(
            f"folder={str(folder)!r}: another writer is at work here; "
            "give each run a folder of its own."
        ) from None
    try:
        for leftover in folder.glob(f"{_WRITING}*"):
            leftover.unlink()  # of a writer that was killed: the lock says that none is at work
        yield
    finally:
        lock.release()
