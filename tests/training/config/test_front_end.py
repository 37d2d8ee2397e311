"""Pictures of one's own by the patch front-end: by rule, computed once, kept where public."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import steppe
from steppe.data import Dataset, Split
from steppe.errors import ConfigurationError, IsolationError
from steppe.models import FixedFrontEnd, FrontEnd, Patches
from steppe.procedural import pictures_with_labels
from steppe.records import WidenedRecords, share_records
from steppe.training import BuiltConfig, Config
from steppe.training.config import data as config_data

TRAIN = {"progress": False}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Patches.fit.__kwdefaults__, "pictures", 400)  # type: ignore[arg-type]


def drawn(count: int = 160, channels: int = 3) -> tuple[Any, Any]:
    found = pictures_with_labels(count, size=16, channels=channels, seed=3)
    x = (found.pictures.permute(0, 2, 3, 1) * 255).to(torch.uint8).numpy()
    return x, found.process.numpy() % 2


def own(folder: Path, channels: int = 3, **model: Any) -> Config:
    x, y = drawn(channels=channels)
    np.savez(folder / "own.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    return Config(
        {
            "data": {"place": str(folder / "own.npz"), "classes": 2},
            "model": {"dictionary": 8, **model},
            "plan": {"epsilon": 3.0},
            "train": TRAIN,
        }
    )


def test_pictures_of_ones_own_take_patches_by_rule(tmp_path: Path) -> None:
    made = own(tmp_path).assemble()
    assert made.resolved["model"] == {
        "name": "patches-linear", "side": 16, "colours": 3, "classes": 2, "dictionary": 8,
        "mirror": True,
    }  # fmt: skip
    assert made.resolved["train"]["publish"] == "last"
    assert "--no-mirror" in made.reasons["mirror"]
    assert made.loaded.cache is None  # private records leave nothing in a folder that others read


def test_grey_pictures_have_no_mirror_unless_it_is_said(tmp_path: Path) -> None:
    assert own(tmp_path, channels=1).assemble().resolved["model"]["mirror"] is False
    told = own(tmp_path, channels=1, mirror=True).assemble()
    assert told.resolved["model"]["mirror"] is True
    assert "mirror" not in told.reasons


@pytest.mark.parametrize(("side", "model"), [(16, "patches-linear"), (12, "scattering-linear")])
def test_small_pictures_take_scattering(tmp_path: Path, side: int, model: str) -> None:
    x, y = drawn()
    np.savez(tmp_path / "own.npz", x=x[:, :side, :side], y=y)
    data = {"place": str(tmp_path / "own.npz"), "classes": 2}
    made = Config({"data": data, "plan": {"epsilon": 3.0}, "train": TRAIN}).assemble()
    assert made.resolved["model"]["name"] == model


def test_a_run_predicts_pictures_with_nothing_but_its_folder(tmp_path: Path) -> None:
    config = own(tmp_path)
    trainer = config.trainer(tmp_path / "run")
    before = trainer.parts.whole.front.digest()  # type: ignore[union-attr,operator]
    trainer.fit()
    (tmp_path / "own.npz").unlink()
    model = steppe.load(tmp_path / "run")
    assert model.module.front.digest() == before  # type: ignore[union-attr,operator]
    x, _ = drawn()
    assert model.predict(x[:7]).tolist() == model.predict(x[:20])[:7].tolist()
    found = model.module(torch.from_numpy(x[:7]).permute(0, 3, 1, 2) / 255)
    np.testing.assert_allclose(found.detach().softmax(-1), model.predict_proba(x[:7]), atol=1e-3)


def test_features_are_held_in_half_precision_and_read_in_float32(tmp_path: Path) -> None:
    made: BuiltConfig = own(tmp_path).assemble()
    assert isinstance(made.data, WidenedRecords)
    inputs, labels = made.data.batch(torch.tensor([5, 1]))
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    shown, _ = made.loaded.train[5]
    assert torch.equal(inputs[0], made.model.features(shown[None])[0])  # type: ignore[operator]
    assert share_records(made.data, made.data)
    assert not share_records(made.data, made.options["evaluate"])


def test_features_of_a_public_data_set_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = drawn()
    found = Dataset("svhn", Split(x[:120], y[:120]), Split(x[120:], y[120:]), 10, "made up", "")
    monkeypatch.setattr(config_data, "load", lambda name: found)
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    tables = {
        "data": {"name": "svhn"},
        "model": {"dictionary": 8},
        "plan": {"epsilon": 3.0},
        "train": TRAIN,
    }
    first = Config(tables).assemble()
    assert first.resolved["model"]["mirror"] is False  # house numbers, though in colour
    rows = torch.arange(120)
    kept = first.data.batch(rows)[0]
    assert len([*(tmp_path / "features").iterdir()]) == 1
    again = Config(tables).assemble()
    monkeypatch.setattr(Patches, "forward", None)
    assert torch.equal(again.data.batch(rows)[0], kept)


def test_predicted_records_leave_no_features_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = drawn()
    found = Dataset("svhn", Split(x[:100], y[:100]), Split(x[100:140], y[100:140]), 10, "", "")
    monkeypatch.setattr(config_data, "load", lambda name: found)
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    plan = {"epsilon": 3.0, "steps": 2, "batch_size": 20}
    tables = {"data": {"name": "svhn"}, "model": {"dictionary": 8}, "plan": plan, "train": TRAIN}
    Config(tables).trainer(tmp_path / "run").fit()
    before = sorted((tmp_path / "features").iterdir())
    assert len(before) == 2  # of both parts of the public data set
    assert len(steppe.load(tmp_path / "run").predict(x[140:])) == 20  # records of somebody else
    assert sorted((tmp_path / "features").iterdir()) == before


class Pictures(FrontEnd):
    """A front-end of the user's own; it may take off the mean over all records of a pass."""

    shape, features = (3, 16, 16), 768

    def __init__(self, mixing: bool) -> None:
        super().__init__()
        self.mixing = mixing

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return (records - records.mean(0) if self.mixing else records).flatten(1)


def alone() -> nn.Module:
    return FixedFrontEnd(Pictures(mixing=False), nn.Linear(768, 2))


def mixing() -> nn.Module:
    return FixedFrontEnd(Pictures(mixing=True), nn.Linear(768, 2))


def test_a_front_end_of_ones_own_must_not_mix_records(tmp_path: Path) -> None:
    tables = {**own(tmp_path).tables, "model": {"factory": f"{__name__}:alone"}}
    assert len(Config(tables).assemble().data[0]) == 120
    tables = {**tables, "model": {"factory": f"{__name__}:mixing"}}
    with pytest.raises(IsolationError, match="front"):
        _ = Config(tables).assemble().data
    assert Config({**tables, "train": {**TRAIN, "isolation": "probed"}}).assemble().data


def test_held_out_private_records_are_not_public(tmp_path: Path) -> None:
    tables = own(tmp_path).tables
    data = {**tables["data"], "holdout": 0.2, "public": 10}
    with pytest.raises(ConfigurationError, match=r"data\.public=10: would take private records"):
        Config({**tables, "data": data}).assemble()
