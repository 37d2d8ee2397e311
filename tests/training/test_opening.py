"""A run and its ledger: held by one, charged before a step, and what it refuses."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from pathlib import Path

import pytest
from training_cases import STEPS, charged, interrupted, plan, raising, trainer

from steppe import SeededSource
from steppe.averaging import CheckpointStore
from steppe.errors import BudgetExhausted, ConfigurationError, DataError, MisuseError, StorageError
from steppe.ledger import Ledger
from steppe.training import Interrupted, StepInfo, read_log
from steppe.training.progress import Bar


def test_a_cut_ledger_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(DataError, match="lines were cut or replaced"):
        trainer(tmp_path / "run").resume()
    path.unlink()
    with pytest.raises(DataError, match="there is no such file, and this run began in one"):
        trainer(tmp_path / "run").resume()


def test_two_runs_cannot_write_at_once(tmp_path: Path) -> None:
    shared = tmp_path / "ledger.jsonl"

    def second(moment: StepInfo) -> None:
        if moment.step == 3:
            with pytest.raises(MisuseError, match="another run writes to it"):
                trainer(tmp_path / "two", ledger=shared).fit()

    trainer(tmp_path / "one", ledger=shared, callbacks=[second]).fit()


@pytest.mark.parametrize("seeded", [(True, False), (False, True)])
def test_a_run_is_void_if_any_part_of_it_was_seeded(
    tmp_path: Path, seeded: tuple[bool, bool]
) -> None:
    first, second = ({"source": SeededSource(0)} if one else {} for one in seeded)
    interrupted(tmp_path / "run", 10, **first)
    outcome = trainer(tmp_path / "run", **second).resume()
    assert outcome.statement.not_private_reason
    assert str(outcome).startswith("NOT PRIVATE")
    assert Ledger(tmp_path / "run" / "ledger.jsonl").epsilon(1e-4) == math.inf
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["not_private_reason"]
    assert result["epsilon"] is result["ledger"]["epsilon"] is None
    assert CheckpointStore(tmp_path / "run" / "store").not_private_reason
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["epsilon"] is None


def test_ctrl_c_before_the_first_charge_leaves_the_ledger_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "ledger.jsonl"
    before = trainer(tmp_path / "one", ledger=shared).fit().epsilon
    own = trainer(tmp_path / "two", ledger=shared)
    with monkeypatch.context() as patched:
        # Where the first note of a run would be written.
        patched.setattr(Bar, "__enter__", lambda bar: signal.raise_signal(signal.SIGINT) or bar)
        with pytest.raises(Interrupted):
            own.fit()
    assert Ledger(shared).epsilon(1e-4) == before
    assert trainer(tmp_path / "two", ledger=shared).resume().steps == STEPS


def test_a_first_charge_that_fails_leaves_the_ledger_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"kind":"charge"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    own = trainer(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageError):
            own.fit()
    assert charged(tmp_path / "run") == 0
    assert trainer(tmp_path / "run").resume().steps == STEPS


def test_a_run_that_its_ledger_refuses_leaves_no_trace(tmp_path: Path) -> None:
    shared = Ledger(tmp_path / "ledger.jsonl", epsilon=1.1 * plan().epsilon_spent(), delta=1e-4)
    loud = trainer(tmp_path / "run", ledger=shared, plan=plan(noise_multiplier=0.6))
    with pytest.raises(BudgetExhausted):
        loud.fit()
    with pytest.raises(ConfigurationError, match="makes epsilon infinite"):
        trainer(tmp_path / "run", ledger=shared, source=SeededSource(0)).fit()
    assert not shared.path.exists()
    assert not (tmp_path / "run" / "config.json").exists()
    assert trainer(tmp_path / "run", ledger=shared).fit().steps == STEPS


def test_a_first_line_that_a_ledger_cannot_take_speaks_of_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "ledger.jsonl"
    own = trainer(tmp_path / "run", ledger=shared)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", raising(OSError(errno.ENOSPC, "no room")))
        said = (
            r"^ledger='.*ledger\.jsonl': cannot be written \(no room\); make room there, or name a"
        )
        with pytest.raises(StorageError, match=said):
            own.fit()
    assert not (tmp_path / "run" / "config.json").exists()
    assert trainer(tmp_path / "run", ledger=shared).fit().steps == STEPS


def test_a_named_ledger_is_said_before_training_and_in_the_outcome(tmp_path: Path) -> None:
    shared = tmp_path / "ledger.jsonl"
    said = ("new", "1 run before this one", "2 runs before this one")
    for place, words in enumerate(said):
        run = tmp_path / str(place)
        outcome = trainer(run, ledger=shared).fit()
        assert f"\nledger: {shared}, {words}\nrun: " in str(outcome)
        note = read_log(run / "log.jsonl")[0]
        assert (note["text"], note["step"]) == (f"ledger: ../ledger.jsonl, {words}", 0)
    again = trainer(tmp_path / "1", ledger=shared).resume()
    assert f"\nledger: {shared}, 1 run before this one\n" in str(again)


def test_a_ledger_is_read_once_before_a_run_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, seen = Ledger(tmp_path / "ledger.jsonl"), []
    trainer(tmp_path / "one", ledger=shared).fit()
    read, begun = Ledger.runs, Ledger.begin
    monkeypatch.setattr(Ledger, "runs", lambda self: seen.append("read") or read(self))
    monkeypatch.setattr(
        Ledger, "begin", lambda self, *a, **o: seen.append("begun") or begun(self, *a, **o)
    )
    trainer(tmp_path / "two", ledger=shared).fit()
    assert seen[: seen.index("begun")] == ["read"]


def test_a_ledger_of_the_runs_own_is_not_mentioned(tmp_path: Path) -> None:
    outcome = trainer(tmp_path / "run").fit()
    assert "ledger: " not in str(outcome)
    assert "ledger: " not in (tmp_path / "run" / "log.jsonl").read_text()
