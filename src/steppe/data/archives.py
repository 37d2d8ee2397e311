"""Read named files out of an archive: nothing is unpacked to disk and nothing in it is run."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60


class BrokenArchive(Exception):
    """The file is damaged or not the expected archive; the caller tries the next source."""


def read_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of some members of an archive, by name.

    Args:
        archive: a wheel or zip, a `.tar.gz` or `.tgz`, or a Debian package.
        names: the members' exact names; in a Debian package those of its data part.

    Returns:
        Each name with its bytes. Other members are not read.
    """
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as package:
                return {name: package.read(name) for name in names}
        if archive.suffix == ".deb":
            return _from_tar(io.BytesIO(_data_part(archive.read_bytes())), names)
        with archive.open("rb") as file:
            return _from_tar(file, names)
    except (
        KeyError,
        ValueError,
        EOFError,
        OSError,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
        tarfile.TarError,
    ) as reason:
        raise BrokenArchive(f"{archive.name}: {reason}") from None


def decompress(content: bytes) -> bytes:
    """The contents of a gzip file."""
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as reason:
        raise BrokenArchive(f"not a whole gzip file: {reason}") from None


def _from_tar(file: io.BufferedIOBase, names: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=file, mode="r:*") as package:
        for member in package:
            if member.name in names and (content := package.extractfile(member)) is not None:
                found[member.name] = content.read()
                if len(found) == len(names):  # the rest of a large archive need not be read
                    return found
    missing = ", ".join(sorted(set(names) - set(found)))
    raise KeyError(f"no member {missing}")


def _data_part(package: bytes) -> bytes:
    """The `data.tar` of a Debian package, which is an `ar` archive of three members."""
    if not package.startswith(_AR_MAGIC):
        raise KeyError("not a Debian package")
    at = len(_AR_MAGIC)
    while at + _AR_HEADER <= len(package):
        name = package[at : at + 16].rstrip(b" /")
        size = int(package[at + 48 : at + 58])
        at += _AR_HEADER
        if name.startswith(b"data.tar"):
            return package[at : at + size]
        at += size + size % 2  # members start at even places
    raise KeyError("a Debian package without its data part")
