"""`steppe data`: what is in the cache, and whether it is intact; no network is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cli_calls import Shell

from steppe.data import cache, catalogue
from steppe.data.dataset import SplitArrays, digest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which a few made-up records pass for a data set."""
    x, y = np.zeros((3, 2, 2), np.uint8), np.zeros(3, np.int64)
    arrays = SplitArrays(x, y, x, y)
    entry = catalogue.find("mnist")
    monkeypatch.setitem(
        catalogue.ENTRIES,
        "mnist",
        dataclasses.replace(entry, sources=(), sha256=digest(arrays)),
    )
    path = folder / "mnist.npz"
    path.write_bytes(cache._packed(arrays, "a test"))
    return path


def test_list(shell: Shell, tiny: Path) -> None:
    out = shell.ok("data list")
    assert out.startswith(
        "name                cached  classes  what\nmnist               yes     10 "
    )
    assert out.endswith(f"cache: {tiny.parent}\n")
    listed = shell.json("data list")["data_sets"]
    assert {row["name"]: row["cached"] for row in listed if row["cached"]} == {"mnist": True}


def test_fetch_what_is_there(shell: Shell, tiny: Path) -> None:
    assert shell.ok("data fetch MNIST").startswith(f"mnist: {tiny}\n  from a test\n  SHA-256 ")
    (row,) = shell.json("data fetch mnist")["data_sets"]
    assert (row["name"], row["source"]) == ("mnist", "a test")


def test_verify(shell: Shell, tiny: Path) -> None:
    assert shell.ok("data verify mnist").startswith("mnist: intact, SHA-256 ")


def test_damage_is_a_failed_check(shell: Shell, tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:-40])
    code, out, err = shell("data verify mnist")
    assert (code, err) == (1, "")
    assert out.startswith(f"mnist: not intact: path={str(tiny)!r}: must be a cached data set")


def test_what_was_never_fetched_is_a_failed_check(shell: Shell, folder: Path) -> None:
    code, out, _ = shell("data verify cifar10")
    assert code == 1
    assert out == (f"cifar10: not intact: name='cifar10': is not in {folder}; run fetch first.\n")


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_an_unknown_name(shell: Shell, folder: Path, command: str) -> None:
    assert shell.refused(f"data {command} minst") == (
        "steppe: error: name='minst': must be one of mnist, fashion-mnist, cifar10, cifar100, "
        "svhn, stl10, adult; did you mean 'mnist'?\n"
    )


def test_no_source_can_be_reached(shell: Shell, tiny: Path) -> None:
    tiny.unlink()
    message = shell.refused("data fetch mnist")
    assert message.startswith(
        "steppe: error: name='mnist': could not be downloaded from any source"
    )


def test_a_cache_that_cannot_be_written(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path / "file"))
    message = shell.refused("data fetch mnist")
    assert "the cache must be a folder that can be written" in message
