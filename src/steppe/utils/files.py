"""Files that are written completely or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from steppe.errors import MisuseError, StorageError
from steppe.utils.formatting import finite

_WRITING = ".writing-"


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file so that no reader ever sees a part of it.

    The data reach the disk before the name does, and the name before the call returns: a crash
    leaves the old file or the new one.

    Args:
        path: the file, in a folder that exists.
        data: all of it.
        mode: who may read and write it; its owner only, if nothing is said.
    """
    with replaced_whole(path, mode) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON; a number that is not finite becomes null."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")


@contextmanager
def replaced_whole(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """The same for data in parts: the file takes the name when the block ends without an error.

    Args:
        path: the file, in a folder that exists.
        mode: who may read and write it; its owner only, if nothing is said.
    """
    descriptor, temporary = _claimed_file(path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
            os.replace(temporary, path)  # before the claim goes with the descriptor
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def writing(name: str, path: Path) -> Iterator[None]:
    """Inside the block something is written; a disk that is full or closed is an error in words.

    Args:
        name: what the user calls the place.
        path: the place.

    Examples:
        >>> with writing("out", Path("page.html")):
        ...     raise OSError(30, "Read-only file system")
        Traceback (most recent call last):
            ...
        steppe.errors.StorageError: out='page.html': cannot be written (Read-only file system); make
        room there, or name a place where you may write.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(name, path, error) from error


def unwritable(name: str, path: Path, error: OSError) -> StorageError:
    """The error for a place where nothing is yet and nothing can be written."""
    return StorageError.about(
        name,
        path,
        f"cannot be written ({error.strerror or error})",
        "make room there, or name a place where you may write",
    )


def _claimed_file(folder: Path) -> tuple[int, str]:
    """A new file to write to, locked until it is closed, so that it is not taken for a leftover."""
    import fcntl

    while True:
        descriptor, name = tempfile.mkstemp(prefix=_WRITING, dir=folder)
        with suppress(OSError):  # where files cannot be locked, none is taken for a leftover
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # removed as a leftover before the lock was there


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left; a file that is being written is locked by its writer."""
    for leftover in folder.glob(f"{_WRITING}*"):
        try:
            claim = Lock(leftover)
        except OSError:
            continue
        leftover.unlink(missing_ok=True)
        claim.release()


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
        path: a folder, or a file, which is made when it does not exist.
        wait: wait for the holder instead of giving up.

    Raises:
        BlockingIOError: somebody else holds it, and `wait` is False.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        import fcntl  # only writers need it, so that a store can be read where there is no flock

        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        self._descriptor: int | None = os.open(path, flags, 0o600)
        _OPEN.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
    """Hold a folder for a whole run, or be refused; readers never need it.

    It keeps out other holders, and not those who change one file of the folder `in_turn`.
    """
    try:
        lock = Lock(folder / ".lock")
    except BlockingIOError:
        raise MisuseError.about(
            "folder", folder, "another process writes to it", "give each run a folder of its own"
        ) from None
    try:
        _remove_leftovers(folder)
        yield
    finally:
        lock.release()


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Wait for others who do the same, then have the folder for a moment: to read, change, write.

    The lock is on the folder itself, which leaves no file in it.
    """
    lock = Lock(folder, wait=True)
    try:
        yield
    finally:
        lock.release()
