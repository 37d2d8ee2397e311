"""Data sets on disk: fetched once, one `.npz` each, checked on every load."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from steppe.data.archives import BrokenArchive
from steppe.data.catalogue import DatasetEntry, find
from steppe.data.dataset import Dataset, Split, SplitArrays, digest
from steppe.data.sources import SourceFailed
from steppe.errors import DataError
from steppe.utils.cache_folder import cache_folder as user_cache
from steppe.utils.files import write_atomically


def cache_folder(root: str | Path | None = None) -> Path:
    """Where data sets are kept: `root`, else `STEPPE_DATA`, else the user's cache directory."""
    if root is not None:
        return Path(root).expanduser()
    if chosen := os.environ.get("STEPPE_DATA"):
        return Path(chosen).expanduser()
    return user_cache()


def load(name: str, *, root: str | Path | None = None, progress: bool | None = None) -> Dataset:
    """A public data set by name; fetched the first time, from disk afterwards.

    Args:
        name: one of `names()`; case, dashes and underscores do not matter.
        root: the cache folder; None for `STEPPE_DATA` or the user's cache directory.
        progress: show a bar while downloading; None to show it on a terminal.

    Returns:
        The data set. Its arrays have passed the check of their SHA-256, whatever the source.
    """
    entry = find(name)
    path = fetch(name, root=root, progress=progress)
    arrays, source, sha256 = _read(entry, path)
    return Dataset(
        name=entry.name,
        train=Split(arrays.x_train, arrays.y_train),
        test=Split(arrays.x_test, arrays.y_test),
        classes=entry.classes,
        source=source,
        sha256=sha256,
    )


def fetch(name: str, *, root: str | Path | None = None, progress: bool | None = None) -> Path:
    """Make sure that a data set is in the cache.

    Args:
        name: one of `names()`.
        root: the cache folder; None for the default one.
        progress: show a bar while downloading; None to show it on a terminal.

    Returns:
        The path of its `.npz`. An existing file is not changed; `verify` checks it.
    """
    entry = find(name)
    path = cache_folder(root) / f"{entry.name}.npz"
    if path.exists():
        return path
    show = sys.stderr.isatty() if progress is None else progress
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays, source = _from_sources(entry, path, show)
        write_atomically(path, _packed(arrays, source))
    except OSError as reason:
        raise DataError.about(
            "root",
            path.parent,
            f"the cache must be a folder that can be written ({reason.strerror or reason})",
            "free some space or set STEPPE_DATA to another folder",
        ) from None
    return path


def verify(name: str, *, root: str | Path | None = None) -> str:
    """Check a cached data set against its pinned fingerprint.

    Args:
        name: one of `names()`.
        root: the cache folder; None for the default one.

    Returns:
        The SHA-256 of its arrays. A file that is absent or differs is an error.
    """
    entry = find(name)
    path = cache_folder(root) / f"{entry.name}.npz"
    if not path.exists():
        raise DataError.about("name", entry.name, f"is not in {path.parent}", "run fetch first")
    return _read(entry, path)[2]


def _from_sources(entry: DatasetEntry, path: Path, progress: bool) -> tuple[SplitArrays, str]:
    reasons = []
    for source, decode in entry.sources:
        # In the cache folder, because a RAM disk for temporary files may be too small.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
            try:
                arrays = decode(source.download(Path(folder), progress))
            except (SourceFailed, BrokenArchive) as reason:
                reasons.append(f"{source.label}: {reason}")
                continue
        if entry.sha256 is not None and (found := digest(arrays)) != entry.sha256:
            reasons.append(f"{source.label}: arrays with the SHA-256 {found[:16]}...")
            continue
        return arrays, source.label
    tried = " | ".join(reasons)
    raise DataError.about(
        "name",
        entry.name,
        f"could not be downloaded from any source ({tried})",
        (
            f"connect to a network that reaches one of them, or copy {path.name} from "
            f"another machine's cache to {path.parent}"
        ),
    )


def _packed(arrays: SplitArrays, source: str) -> bytes:
    file = io.BytesIO()
    # Not compressed: pictures shrink little, and a load is then as fast as the disk.
    np.savez(file, source=np.array(source), sha256=np.array(digest(arrays)), **arrays._asdict())
    return file.getvalue()


def _read(entry: DatasetEntry, path: Path) -> tuple[SplitArrays, str, str]:
    remedy = "delete it and fetch again"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = SplitArrays(*(file[field] for field in SplitArrays._fields))
            source, recorded = str(file["source"]), str(file["sha256"])
    except Exception as reason:  # on a broken file, numpy and zipfile raise all sorts of errors
        raise DataError.about(
            "path", path, f"must be a cached data set ({reason})", remedy
        ) from None
    found = digest(arrays)
    if found != (entry.sha256 or recorded):
        raise DataError.about(
            "path",
            path,
            (
                f"must hold the arrays with the SHA-256 {(entry.sha256 or recorded)[:16]}..., "
                f"not {found[:16]}..."
            ),
            remedy,
        )
    return arrays, source, found
