"""A start in `[model]` of a configuration file: train, resume, load again."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import steppe
from steppe.errors import ConfigurationError, DataError
from steppe.models import create
from steppe.starts import Card, PublicRecords, write_start
from steppe.training import Config, Interrupted, StepInfo, resume

PLAN: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "delta": 1e-4,
    "batch_size": 40,
    "steps": 6,
    "clip": {"name": "Flat", "bound": 0.5},
    "point": "Here",
}
NETWORK: dict[str, Any] = {"name": "resnet-20", "channels": 1}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, size=(140, 8, 8), dtype=np.uint8)
    y = generator.integers(0, 3, size=140)
    path = tmp_path / "pictures.npz"
    np.savez(path, x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    return path


@pytest.fixture
def start(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = create("resnet-20", channels=1, classes=5)
    card = Card(PublicRecords("shapes", 320), {"kind": "DPAdapter"})
    return write_start(tmp_path / "start.safetensors", model.state_dict(), card)


def config(pictures: Path, model: dict[str, Any], **tables: Any) -> Config:
    return Config(
        {
            "data": {"place": str(pictures), "classes": 3},
            "model": model,
            "plan": PLAN,
            "optimizer": {"name": "SGD", "lr": 0.5},
            "averages": {"EMA": {"decay": 0.9}},
            "train": {"progress": False, "seed": 1},
            **tables,
        }
    )


@pytest.mark.parametrize(
    "how",
    [
        {"train": "head"},
        {"train": "norm-and-bias"},
        {"train": ["9", "*.bias"], "freeze": ["*.bias"]},
        {"freeze": ["0"]},
    ],
    ids=str,
)
def test_a_run_with_a_start_trains_and_its_model_is_loaded_without_the_start(
    how: dict[str, Any], pictures: Path, start: Path, tmp_path: Path
) -> None:
    names = [n for n, _ in create("resnet-20", channels=1).named_parameters()]
    if "train" in how and isinstance(how["train"], list):
        how = {**how, "train": [names[1].rpartition(".")[0], "*.bias"], "freeze": ["*.bias"]}
    model = {**NETWORK, "start": str(start), "head": 3, **how}
    trainer = config(pictures, model).trainer(tmp_path / "run")
    outcome = trainer.fit()
    assert outcome.statement.starts == ("shapes (320 records), by DPAdapter training",)
    stated = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert stated["starts"] == list(outcome.statement.starts)
    start.unlink()
    loaded = steppe.load(tmp_path / "run")
    with np.load(pictures) as file:
        x = file["x_test"][:6]
    inputs = torch.tensor(x).float()[:, None] / 255
    whole = trainer.parts.whole.eval()
    assert outcome.published == "last"
    found = loaded.predict_proba(x)
    torch.testing.assert_close(
        torch.tensor(found).float(), whole(inputs).softmax(-1).detach(), rtol=1e-4, atol=1e-5
    )


def test_low_rank_changes_from_a_file(pictures: Path, tmp_path: Path) -> None:
    vit = {"name": "vit", "size": 8, "patch": 4, "channels": 1, "width": 16, "depth": 1, "heads": 2}
    model = {**vit, "lora": {"rank": 2, "layers": ["*"]}}
    trainer = config(pictures, model).trainer(tmp_path / "run")
    trained = [n for n, p in trainer.model.named_parameters() if p.requires_grad]
    assert all("lora_" in name or "head" in name for name in trained)
    trainer.fit()
    assert steppe.load(tmp_path / "run").predict(np.zeros((2, 8, 8), np.uint8)).shape == (2,)


def test_groups_and_public_steps_from_a_file(pictures: Path, start: Path, tmp_path: Path) -> None:
    model = {**NETWORK, "start": str(start), "head": 3, "train": "norm-and-bias"}
    names = [n for n, _ in create("resnet-20", channels=1).named_parameters()]
    head = names[-1].rpartition(".")[0]
    made = config(
        pictures,
        model,
        data={"place": str(pictures), "classes": 3, "public": 16},
        optimizer={"name": "SGD", "lr": 0.1, "groups": {f"{head}.bias": {"lr": 0.9}}},
        train={"progress": False, "public_batch": 8, "public_every": 2, "checkpoint_every": 3},
    ).trainer(tmp_path / "run")
    assert [group["lr"] for group in made.optimizer.param_groups] == [0.1, 0.9]
    outcome = made.fit()
    assert outcome.statement.public_steps
    assert outcome.statement.public_records == 0  # the clip did not see them
    again = resume(tmp_path / "run", progress=False)
    assert again.steps == outcome.steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"head": 5},
            r"model\.head=5: must be the number of classes of the data, 3; write",
        ),
        ({"head": 3, "freeze": ["body"]}, r"model\.freeze='body': matches no name of the model"),
        ({"head": 3, "train": "heads"}, r"model\.train='heads': matches no name of the model"),
        ({"head": 3, "batch_norm": "on"}, r"model\.batch_norm='on': must be one of 'frozen', 'fol"),
        ({"head": 3, "lora": 4}, r"model\.lora=4: must be a table; write lora = "),
        ({"head": 3, "lora": {"rang": 4}}, r"model\.lora\.rang=4: .* did you mean 'rank'\?"),
        ({"head": 3, "lora": {"rank": 4}}, r"layers=None: must name a torch.nn.Linear besides"),
        (
            {"head": 3, "start": "nowhere.safetensors"},
            r"start='nowhere.safetensors': is not a",
        ),
        (
            {},
            r"does not fit the model; of other shapes: .*\(5, 64\) in the start, \(3, 64\) in",
        ),
        ({"name": "gn-resnet-10"}, r"does not fit the model; not in the start: "),
    ],
)
def test_mistakes_in_the_table_are_named(
    changes: dict[str, Any], message: str, pictures: Path, start: Path, tmp_path: Path
) -> None:
    model = {**NETWORK, "start": str(start), **changes}
    with pytest.raises((ConfigurationError, DataError), match=message):
        config(pictures, model).trainer(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_start_needs_its_network(pictures: Path, start: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"`model\.name` is needed beside a start"):
        config(pictures, {"start": str(start)}).assemble()


def test_public_steps_need_public_records(pictures: Path, tmp_path: Path) -> None:
    train = {"progress": False, "public_batch": 8}
    with pytest.raises(ConfigurationError, match=r"`data\.public` is needed by public steps"):
        config(pictures, {"name": "logistic"}, train=train).trainer(tmp_path / "run")
    data = {"place": str(pictures), "classes": 3, "public": 5}
    with pytest.raises(ConfigurationError, match=r"public_batch=8: must be at most the number of"):
        config(pictures, {"name": "logistic"}, data=data, train=train).trainer(tmp_path / "run")
    own = {"progress": False, "public_every": 2}
    with pytest.raises(ConfigurationError, match=r"public_every=2: is for public steps, and there"):
        config(pictures, {"name": "logistic"}, train=own).trainer(tmp_path / "run")


def test_a_user_s_own_network_with_batch_norm_keeps_its_statistics(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),\n"
        "                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from importlib import import_module

    network: nn.Module = import_module("own_network").build()
    card = Card(PublicRecords("shapes"))
    path = write_start(tmp_path / "own.safetensors", network.state_dict(), card)
    model = {"factory": "own_network:build", "start": str(path), "head": 3}
    for way in ("frozen", "folded"):
        built = config(pictures, {**model, "batch_norm": way}).assemble()
        kinds = [type(layer).__name__ for layer in built.model]
        assert kinds[1] == {"frozen": "FrozenBatchNorm", "folded": "Identity"}[way]
        assert built.resolved["model"]["shape"] == [1, 8, 8]


def test_published_weights_need_their_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steppe.data import starts
    from steppe.starts import weights_digest

    monkeypatch.setenv("STEPPE_DATA", str(tmp_path / "cache"))
    name = "efficientnet-lite0"
    torch.manual_seed(0)
    weights = create(name, classes=1000).state_dict()
    card = starts.START_ENTRIES[name].card
    write_start(tmp_path / "cache" / f"{name}.safetensors", weights, card)
    entry = dataclasses.replace(starts.START_ENTRIES[name], sha256=weights_digest(weights))
    monkeypatch.setitem(starts.START_ENTRIES, name, entry)
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, size=(60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "p.npz", x_train=x, y_train=np.arange(60) % 3, x_test=x, y_test=[0] * 60)
    model = {"start": name, "resolution": 32}
    trainer = config(tmp_path / "p.npz", model).trainer(tmp_path / "run")
    assert [n for n, _ in trainer.model.named_parameters()] == ["weight", "bias"]
    assert tuple(trainer.model.weight.shape) == (3, 1280)
    statement = trainer.fit().statement
    assert statement.starts[0].startswith("ImageNet (ILSVRC 2012) (1,281,167 records)")
    assert not (tmp_path / "cache" / "features").exists()  # nothing of a user's own records is kept
    assert steppe.load(tmp_path / "run").predict(x[:4]).shape == (4,)


def test_a_stopped_run_with_public_steps_ends_where_it_would_have(
    pictures: Path, start: Path, tmp_path: Path
) -> None:
    model = {**NETWORK, "start": str(start), "head": 3, "train": "norm-and-bias"}
    tables: dict[str, Any] = {
        "data": {"place": str(pictures), "classes": 3, "public": 16},
        "train": {"progress": False, "public_batch": 8, "checkpoint_every": 2, "seed": 1},
    }

    def stop(info: StepInfo) -> None:
        if info.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    made = config(pictures, model, **tables).trainer(tmp_path / "run", callbacks=[stop])
    with pytest.raises(Interrupted, match="stopped after step 3 of 6"):
        made.fit()
    outcome = resume(tmp_path / "run", progress=False)
    assert (outcome.steps, outcome.lost) == (6, 0)
    assert outcome.statement.public_steps
    assert outcome.statement.starts == ("shapes (320 records), by DPAdapter training",)


def test_published_weights_take_low_rank_changes_too(
    pictures: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steppe.training.config import model as tables

    monkeypatch.setattr(tables, "start_names", lambda: ("efficientnet-lite0",))
    table: dict[str, Any] = {"start": "efficientnet-lite0", "lora": {"rank": 2}}
    given, reasons = dict(table), {}
    data = SimpleNamespace(classes=3)
    tables._settle(table, given, data, reasons)  # type: ignore[arg-type]
    assert "train" not in given
    assert (given["head"], given["batch_norm"], table["resolution"]) == (3, "folded", 128)
    assert reasons == {"model": "the network of the start"}
