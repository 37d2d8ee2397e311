"""The folder of a run: who may look into it, what it takes, and what is in it."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from training_cases import STEPS, interrupted, plan, raising, trainer

from steppe.averaging import CheckpointStore
from steppe.errors import ConfigurationError, MisuseError, StorageError
from steppe.ledger import Ledger
from steppe.training import StepInfo
from steppe.training.folder import RunFolder, write_weights


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_is_for_its_owner_only_however_open_new_folders_are(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "runs" / "first")
        with folder.held():
            write_weights(folder.average("EMA"), {}, {}, None)
    finally:
        os.umask(before)
    assert mode(folder.path) == 0o700
    assert mode(folder.averages) == 0o700
    assert mode(folder.average("EMA")) == 0o600
    assert mode(folder.path / ".lock") == 0o600


def test_the_files_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = trainer(run).fit()
    config, made = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "plan"))
    assert made["digest"] == plan().digest() == config["settings"]["plan"]["digest"]
    result = json.loads((run / "result.json").read_text())
    assert result["table"] == [dict(row) for row in outcome.table]
    assert result["epsilon"] == outcome.epsilon
    assert result["ledger"]["epsilon"] == outcome.epsilon
    assert "abadi2016deep" in result["citation"]
    assert "shejwalkar2025recycling" in result["citation"]
    assert result["layers"][0]["weights"] == ["0.weight", "0.bias"]
    assert json.loads((run / "statement.json").read_text())["epsilon"] == outcome.epsilon
    assert set(load_file(run / "model.safetensors")) == {
        "0.weight", "0.bias", "2.weight", "2.bias",
    }  # fmt: skip
    assert (run / "averages" / "EMA_decay=0.9_warmup=1.safetensors").exists()
    assert len(list((run / "checkpoints").glob("*.json"))) == 2
    assert len(CheckpointStore(run / "store").entries()) == STEPS // 4
    for path in run.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    trainer(tmp_path / "run").fit()
    with pytest.raises(MisuseError, match=r"a run already; resume it with `Trainer\(…, run="):
        trainer(tmp_path / "run").fit()


def test_remains_of_another_run_are_not_stumbled_over(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(MisuseError, match="contains a run already"):
        trainer(tmp_path / "run").fit()


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    def second(moment: StepInfo) -> None:
        if moment.step == 3:
            for begin in (trainer(tmp_path / "run").fit, trainer(tmp_path / "run").resume):
                with pytest.raises(MisuseError, match="another process writes to it"):
                    begin()

    assert trainer(tmp_path / "run", callbacks=[second]).fit().steps == STEPS


def test_a_run_has_a_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^run='': must name a folder; write run="):
        trainer("")  # type: ignore[arg-type]


def test_a_folder_is_a_path() -> None:
    with pytest.raises(ConfigurationError, match="run=5: must be a path; write run="):
        trainer(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("below", ["file/run", "file/deeper/run"])
def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"cannot be made \(.+\); name a folder in a place"
    ):
        trainer(tmp_path / below).fit()


def test_a_run_whose_files_cannot_be_written_has_charged_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "ledger.jsonl"
    own = trainer(tmp_path / "run", ledger=shared)
    with monkeypatch.context() as patched:
        patched.setattr(type(own.folder), "begin", raising(OSError(errno.ENOSPC, "no room")))
        with pytest.raises(StorageError):
            own.fit()
    assert [run.charged for run in Ledger(shared).runs().values()] == [0]
    outcome = trainer(tmp_path / "run", ledger=shared).fit()
    assert Ledger(shared).epsilon(1e-4) == outcome.epsilon


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize(
    "file", [".lock", "config.json", "checkpoints", "store", "log.jsonl", "000000000.json"]
)
def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, file: str
) -> None:
    shared = tmp_path / "ledger.jsonl"
    own = trainer(tmp_path / "run", ledger=shared, store_every=4)
    opened, moved, made = os.open, os.replace, os.mkdir

    def unless_refused(place: Any) -> Any:
        if Path(str(place)).name == file and str(place).startswith(str(tmp_path / "run")):
            raise OSError(number, os.strerror(number), str(place))
        return place

    monkeypatch.setattr(os, "open", lambda place, *a: opened(unless_refused(place), *a))
    monkeypatch.setattr(os, "mkdir", lambda place, *a: made(unless_refused(place), *a))
    monkeypatch.setattr(os, "replace", lambda old, new: moved(old, unless_refused(new)))
    with pytest.raises(
        StorageError, match=rf"^\w+='.*{file}': .*\({os.strerror(number)}\)"
    ) as said:
        own.fit()
    monkeypatch.undo()
    begun = (tmp_path / "run" / "config.json").exists()
    assert begun == (file not in (".lock", "config.json"))
    if file != "store":  # which has an error of its own
        assert ("and resume the run" in str(said.value)) == begun
        assert ("or name a place where you may write" in str(said.value)) != begun
    assert all(run.charged == 0 for run in Ledger(shared).runs().values())


@pytest.mark.parametrize("after", [0, 3, 8, 20, 33, 47])
def test_a_full_disk_is_a_clear_error_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    real, calls = os.fsync, iter(range(10**6))

    def full(descriptor: int) -> None:
        if next(calls) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    own = trainer(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"No space left on device.*make room"):
            own.fit()
    again = trainer(tmp_path / "run")
    outcome = again.resume() if (tmp_path / "run" / "config.json").exists() else again.fit()
    assert outcome.steps + outcome.lost == STEPS
    assert outcome.lost <= 5 + 4
    assert outcome.epsilon == plan().epsilon_spent()
