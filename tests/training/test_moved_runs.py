"""Run folders that are passed on or moved, with their ledger or without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from training_cases import STEPS, stop_at, trainer

from steppe.errors import ConfigurationError, DataError
from steppe.ledger import Ledger
from steppe.training import Config, Interrupted, read, read_log, resume

PLAN = {"epsilon": 8.0, "delta": 1e-4, "batch_size": 40, "steps": 10}
RECORDS = """
import torch

def make():
    x = torch.randn(400, 6).numpy()
    return x, (x[:, 0] > 0).astype(int)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a run from a file was stopped; its ledger lies beside it."""
    (tmp_path / "moved_records.py").write_text(RECORDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = {
        "data": {"place": "moved_records:make", "classes": 2},
        "plan": PLAN,
        "train": {"ledger": str(tmp_path / "ann" / "people.jsonl"), "progress": False},
    }
    tables["train"]["run"] = str(tmp_path / "ann" / "run")
    with pytest.raises(Interrupted):
        Config(tables).trainer(callbacks=[stop_at(5)]).fit()
    return tmp_path / "ann"


def charged(ledger: Path) -> int:
    (only,) = Ledger(ledger).runs().values()
    return only.charged


def test_no_file_of_a_run_names_a_folder_of_the_machine(home: Path) -> None:
    assert resume(home / "run").steps == 10
    for path in (home / "run").rglob("*"):
        if path.is_file():
            assert str(home).encode() not in path.read_bytes(), path
    notes = [line["text"] for line in read_log(home / "run" / "log.jsonl") if "text" in line]
    assert notes[0] == "ledger: ../people.jsonl, new"
    assert 'ledger = "{run}/../people.jsonl"' in (home / "run" / "run.toml").read_text()


def test_a_run_that_moves_with_its_ledger_goes_on(home: Path, tmp_path: Path) -> None:
    home.rename(tmp_path / "bob")
    assert resume(tmp_path / "bob" / "run").steps == 10
    assert charged(tmp_path / "bob" / "people.jsonl") == 10
    assert not home.exists()


def test_a_run_that_moves_alone_asks_for_its_ledger(home: Path, tmp_path: Path) -> None:
    moved = tmp_path / "far" / "run"
    shutil.move(home / "run", moved)
    missing = tmp_path / "far" / "people.jsonl"
    with pytest.raises(DataError) as refused:
        resume(moved)
    assert str(refused.value) == (
        f"train.ledger={str(missing)!r}: there is no such file, and this run began in one; put it "
        "back, or give its new path."
    )
    assert not missing.exists()
    own = moved / "run.toml"
    own.write_text(own.read_text().replace("{run}/../people.jsonl", str(home / "people.jsonl")))
    assert resume(moved).steps == 10
    assert charged(home / "people.jsonl") == 10


def test_another_ledger_by_the_same_name_is_refused(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "people.jsonl"
    trainer(tmp_path / "other" / "run", ledger=other).fit()
    own = home / "run" / "run.toml"
    own.write_text(own.read_text().replace("{run}/../people.jsonl", str(other)))
    with pytest.raises(DataError, match="lines were cut or replaced"):
        resume(home / "run")


def test_a_new_run_by_the_file_of_another_shares_its_ledger(home: Path) -> None:
    outcome = read(home / "run" / "run.toml").trainer(home / "second").fit()
    assert outcome.ledger is not None
    assert outcome.ledger["runs"] == 2


def test_a_copy_of_the_file_elsewhere_does_not_begin_another_ledger(home: Path) -> None:
    shutil.copy(home / "run" / "run.toml", home / "copy.toml")
    with pytest.raises(ConfigurationError) as refused:
        read(home / "copy.toml")
    assert str(refused.value) == (
        "train.ledger='{run}/../people.jsonl': is a path relative to a run's folder, but this file "
        "is not in one; write the path of the ledger."
    )


def test_a_run_does_not_go_on_in_a_ledger_of_another_name(tmp_path: Path) -> None:
    run, ledger = tmp_path / "run", tmp_path / "people.jsonl"
    with pytest.raises(Interrupted):
        trainer(run, ledger=ledger, callbacks=[stop_at(5)]).fit()
    with pytest.raises(ConfigurationError, match=r"^ledger='other\.jsonl': differs from"):
        trainer(run, ledger=tmp_path / "other.jsonl").resume()
    assert trainer(run, ledger=ledger).resume().steps == STEPS
