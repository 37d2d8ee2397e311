"""Pre-training from a TOML file, and its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe.cli.main import main
from steppe.errors import ConfigurationError, DataError
from steppe.pretraining import read_pretraining, resume_pretraining
from steppe.starts import read_start

FILE = """
[data]
place = "{place}"
classes = 2
called = "half-planes"

[model]
name = "logistic"

[method]
name = "DPAdapter"
perturbation_batch = 60
cap = 0.5

[optimizer]
name = "SGD"
lr = 0.1

[scheduler]
name = "CosineAnnealingLR"

[pretrain]
batch_size = 20
epochs = 2
seed = 3
progress = false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(100, 4)).astype(np.float32)
    place = tmp_path / "points.npz"
    np.savez(place, x=x, y=(x[:, 0] > 0).astype(np.int64))
    config = tmp_path / "pre.toml"
    config.write_text(FILE.format(place=place))
    return config


def test_a_file_gives_a_start(file: Path, tmp_path: Path) -> None:
    outcome = read_pretraining(file).run(tmp_path / "run")
    card = read_start(outcome.start).card
    assert card.data.name == "half-planes"
    assert card.method == {
        "kind": "DPAdapter",
        "perturbation_batch": 60,
        "rate": 1.0,
        "cap": 0.5,
        "scope": "model",
        "warmup": 0,
    }
    assert card.constants["steps"] == 10
    assert card.constants["scheduler"]["state"]["T_max"] == 10
    again = read_pretraining(file).run(tmp_path / "again")
    assert read_start(again.start).sha256 == read_start(outcome.start).sha256
    same = resume_pretraining(tmp_path / "run")  # at its last step already
    assert read_start(same.start).weights.keys() == read_start(outcome.start).weights.keys()
    assert same.steps == 10


def test_the_command_prints_the_start(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", str(file), "--run", str(tmp_path / "run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["start"] == str(tmp_path / "run" / "start.safetensors")
    assert printed["times_standard"] == 4.0
    assert main(["pretrain", "--resume", str(tmp_path / "run")]) == 0
    assert "card: half-planes (100 records" in capsys.readouterr().out
    assert main(["pretrain"]) == 2
    assert "`CONFIG` is required" in capsys.readouterr().err


def test_procedural_pictures_by_their_name(tmp_path: Path) -> None:
    config = tmp_path / "pre.toml"
    config.write_text(
        '[data]\nname = "procedural"\ncount = 60\nsize = 8\nchannels = 1\n'
        '[model]\nname = "logistic"\n'
        "[pretrain]\nbatch_size = 20\nsteps = 3\nprogress = false\n"
    )
    outcome = read_pretraining(config).run(tmp_path / "run")
    assert outcome.card.data.drawn
    assert outcome.card.constants["steps"] == 3


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("cap = 0.5", "cap = 0.0", r"cap=0\.0: must be finite and above 0"),
        (
            "perturbation_batch = 60",
            "perturbation_batch = 101",
            r"method\.perturbation_batch=101: m",
        ),
        ('name = "DPAdapter"', 'name = "DPAdaptor"', r"method\.name='DPAdaptor': .*'DPAdapter'\?"),
        ("cap = 0.5", "capp = 0.5", r"method\.capp=0\.5: is not known here"),
        (
            "batch_size = 20",
            "batch_size = 200",
            r"pretrain\.batch_size=200: must be at most the nu",
        ),
        ("epochs = 2", "epoch = 2", r"pretrain\.epoch=2: .* did you mean 'epochs'\?"),
        ('name = "logistic"', 'name = "logistik"', r"model\.name='logistik': must be one of"),
        ("lr = 0.1", "lr = -0.1", r"optimizer=.*: is refused by SGD: Invalid learning rate"),
        ('name = "SGD"', 'name = "SDG"', r"optimizer\.name='SDG': is not known here"),
        ("[scheduler]", "[schedule]", r"schedule='dict': is not known here"),
        ('called = "half-planes"', "count = 5", r"data\.count=5: is for procedural pictures"),
    ],
)
def test_mistakes_are_named_by_their_keys(
    file: Path, was: str, now: str, message: str, tmp_path: Path
) -> None:
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, now))
    with pytest.raises(ConfigurationError, match=message):
        read_pretraining(file).run(tmp_path / "run")


def test_a_folder_without_a_run_does_not_resume(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no pre-training that was started from"):
        resume_pretraining(tmp_path)


def test_an_interrupted_run_resumes_by_the_command(file: Path, tmp_path: Path) -> None:
    config: Any = read_pretraining(file)
    config.run(tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("[0-9]*.json"))
    newest.unlink()  # as if the run had been killed one checkpoint earlier
    before = read_start(tmp_path / "run" / "start.safetensors").sha256
    (tmp_path / "run" / "start.safetensors").unlink()
    assert read_start(resume_pretraining(tmp_path / "run").start).sha256 == before
