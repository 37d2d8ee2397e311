"""A file of JSON lines that only grows, each line bound to all before it by a hash.

A line is a JSON object whose last field is `hash`, the SHA-256 of the line before's hash and of the
bytes of this line up to that field. Changing, dropping or moving any line but the last few breaks
every line after it. Dropping whole lines from the end leaves a shorter chain that is sound in
itself; an `Anchor` kept elsewhere, as checkpoints do, shows it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.errors import DataError, MisuseError, StorageError
from steppe.utils.files import Lock, sync_folder, write_atomically, writing

Record = dict[str, Any]

_START = "0" * 64
_FIRST = b'{"seq":'
_HASH_FIELD = b',"hash":"'
_SUFFIX = len(_HASH_FIELD) + 64 + len(b'"}')


@dataclass(frozen=True)
class Anchor:
    """A place in a chain: how many lines it had, and the hash of the last of them."""

    length: int = 0
    head: str = _START


@dataclass(frozen=True)
class Reading:
    """A chain as it is on the disk.

    Args:
        records: every whole line, without its hash.
        hashes: their hashes.
        torn: bytes after them that are not a whole line, of a writer that was cut short.
        size: bytes of the whole lines.
    """

    records: tuple[Record, ...]
    hashes: tuple[str, ...]
    torn: bytes
    size: int

    @property
    def anchor(self) -> Anchor:
        """Where the chain ends."""
        return Anchor(len(self.hashes), self.hashes[-1]) if self.hashes else Anchor()

    def contains(self, anchor: Anchor) -> bool:
        """Whether the chain went through this place."""
        return anchor.length == 0 or self.hashes[anchor.length - 1 : anchor.length] == (
            anchor.head,
        )


def read(path: Path) -> Reading:
    """Read and check a chain; a file that does not exist is an empty one.

    Args:
        path: the file.

    Returns:
        The records, and what an interrupted writer left behind them.

    Guarantees:
        A line that was edited, or that does not follow the one before, is refused by its number.
        Only an unfinished last line is let through, as `torn`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except IsADirectoryError:
        raise DataError.about(
            "ledger", path, "is a folder, not a ledger", "name a file in it"
        ) from None
    except OSError as error:
        raise DataError.about(
            "ledger",
            path,
            f"cannot be read ({error.strerror})",
            "name a file that can be, or a new one",
        ) from None
    *lines, torn = data.split(b"\n")
    if lines and not torn and b"\0" in lines[-1]:
        # After a loss of power the end of a write can be on the disk without its beginning.
        torn = lines.pop() + b"\n"
    _require_first_record(path, lines[0] if lines else torn)
    records: list[Record] = []
    hashes: list[str] = []
    for number, line in enumerate(lines, 1):
        record = _parsed(path, number, line)
        if record.get("seq") != number:
            raise _damage(path, number, f"says it is record {record.get('seq')}: some are missing")
        expected = _link(hashes[-1] if hashes else _START, line[:-_SUFFIX])
        if record.pop("hash", None) != expected:
            raise _damage(path, number, "does not have the hash it must have: it was changed")
        records.append(record)
        hashes.append(expected)
    return Reading(tuple(records), tuple(hashes), torn, len(data) - len(torn))


class Writer:
    """The only writer of a chain, from construction to `close`.

    Args:
        path: the file; made when it does not exist, readable by its owner only.

    Guarantees:
        When `append` returns, the line is on the disk. When it fails, the chain is as before. The
        lock is the kernel's: it goes with the process, however that ends. A forked process neither
        holds it nor writes.
    """

    def __init__(self, path: Path) -> None:
        with writing("ledger", path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path = path.resolve()  # two names of one file must meet at one lock
        # Beside the file and not on it, so that the file may be replaced under the lock.
        self._lock: Lock | None = None
        self._file: int | None = None
        try:
            self._lock = _locked(path.with_name(f"{path.name}.lock"), path)
            self.reading = read(path)
            self.anchor, self._size = self.reading.anchor, self.reading.size
        except BaseException:
            self.close()
            raise

    def mend(self, record: Record) -> None:
        """Put a record in the place of the torn end of the file, in one step."""
        whole = self.path.read_bytes()[: self.reading.size]
        line, digest = _line(record, self.anchor)
        try:
            write_atomically(self.path, whole + line)
        except OSError as error:
            raise storage_error(self.path, error) from error
        self._advance(len(whole) + len(line), digest)

    def append(self, record: Record) -> Anchor:
        """Add a record and wait until it is on the disk."""
        line, digest = _line(record, self.anchor)
        file = self._opened()
        try:
            written = os.write(file, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError as error:
            # Nothing was started on the strength of this line, so it may go. Should even that
            # fail, it is a torn end, which the next reader takes for a charge.
            with suppress(OSError):
                os.ftruncate(file, self._size)
            raise storage_error(self.path, error) from error
        except BaseException:  # Ctrl-C: the line may be there, and the next reader will see
            self.close()
            raise
        self._advance(self._size + len(line), digest)
        return self.anchor

    def close(self) -> None:
        """Let others write."""
        if self._file is not None:
            os.close(self._file)
        if self._lock is not None:
            self._lock.release()
        self._file = self._lock = None

    def _advance(self, size: int, digest: str) -> None:
        self._size, self.anchor = size, Anchor(self.anchor.length + 1, digest)

    def _opened(self) -> int:
        """The open file, after a check that nobody else touched it."""
        if self._lock is None or not self._lock.held:
            raise MisuseError.about("ledger", self.path, "was closed", "open the run again")
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                sync_folder(self.path.parent)
            except OSError as error:
                raise storage_error(self.path, error) from error
        ours = os.fstat(self._file)
        if not (self.path.exists() and os.path.samestat(ours, os.stat(self.path))):
            raise MisuseError.about(
                "ledger",
                self.path,
                "was moved or replaced while a run writes to it",
                "put the file back and resume the run",
            )
        if ours.st_size != self._size:
            raise MisuseError.about(
                "ledger",
                self.path,
                "was changed by something else while a run writes to it",
                "restore it and resume the run",
            )
        return self._file


def storage_error(path: Path, error: OSError) -> StorageError:
    """The error for a file that could not be written."""
    return StorageError.about(
        "file",
        path,
        f"could not be written ({error.strerror})",
        (
            "all earlier entries are intact: make room, or make the folder writable, "
            "and resume the run"
        ),
    )


def _line(record: Record, after: Anchor) -> tuple[bytes, str]:
    numbered = {"seq": after.length + 1, **record}
    body = json.dumps(numbered, separators=(",", ":"), allow_nan=False).encode()[:-1]
    digest = _link(after.head, body)
    return body + _HASH_FIELD + digest.encode() + b'"}\n', digest


def _link(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


def _parsed(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _damage(path, number, "is not a record")
    return record


def _require_first_record(path: Path, line: bytes) -> None:
    """Refuse another file, which must not be taken for a torn ledger and mended."""
    begins = line[: len(_FIRST)] == _FIRST[: len(line)]
    if not begins and b"\0" not in line:  # zeros are what a loss of power leaves
        raise DataError.about(
            "ledger",
            path,
            "is not a ledger: line 1 is not a record",
            "name the file that runs wrote or a new one, or restore it from a copy",
        )


def _damage(path: Path, number: int, rule: str) -> DataError:
    return DataError.about(
        "ledger",
        path,
        f"line {number} {rule}",
        "the account cannot be trusted, restore the file from a copy",
    )


def _locked(lock: Path, path: Path) -> Lock:
    with writing("ledger", path):
        try:
            return Lock(lock)
        except BlockingIOError:
            raise MisuseError.about(
                "ledger",
                path,
                "another run writes to it",
                "wait until it ends, since two writers could both spend what is left",
            ) from None
