"""Runs that go on: what comes back, what must not change, and damaged files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_cases import STEPS, broken, interrupted, plan, stop_at, trainer

from steppe import SAT
from steppe.averaging import CheckpointStore, reconstruct, stored_snapshots
from steppe.errors import ConfigurationError, DataError
from steppe.training import Interrupted, Snapshots, StepInfo, Trainer, read_log


def test_everything_comes_back_but_randomness(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 10, plan=plan(point=SAT(0.05)))
    ends = []
    for copy in ("one", "two"):
        shutil.copytree(tmp_path / "run", tmp_path / copy)
        seen: list[Any] = []

        def look(moment: StepInfo, seen: list[Any] = seen) -> bool:
            seen.append(moment.step)
            return True

        own = trainer(tmp_path / copy, plan=plan(point=SAT(0.05)), callbacks=[look])
        own.resume()
        assert seen == [11]
        # Ten updates before the interruption and one after it.
        assert [average.updates for average in own.parts.averages.averages.values()] == [11, 11]
        (group,) = own.optimizer.param_groups
        assert group["lr"] == pytest.approx(0.5 * (1 - 11 / STEPS))
        assert any("momentum_buffer" in state for state in own.optimizer.state.values())
        ends.append(torch.cat([p.detach().flatten() for p in own.model.parameters()]))
    assert not torch.equal(*ends)


def test_the_schedule_ends_with_the_plan_whatever_was_lost(tmp_path: Path) -> None:
    broken(tmp_path / "run", 13)
    own = trainer(tmp_path / "run")
    own.resume()
    assert own.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_a_finished_run_resumes_to_its_result(tmp_path: Path) -> None:
    first = trainer(tmp_path / "run").fit()
    (tmp_path / "run" / "result.json").unlink()
    again = trainer(tmp_path / "run").resume()
    scores = [[{**row, "seconds": None} for row in outcome.table] for outcome in (first, again)]
    assert scores[0] == scores[1]
    assert again.epsilon == first.epsilon


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run")
    with own.folder.held():
        own.folder.begin(own.plan, own.statement, own.parts.config("an id"), None)
    assert trainer(tmp_path / "run").resume().steps == STEPS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.25}, r"optimizer\.groups=.*differs from the value that the run began with"),
        (
            {"plan": plan(steps=30)},
            r"plan\.steps=30: differs from the value that the run began with, 24",
        ),
        ({"averages": ()}, r"averages=\[\]: differs from the value that the run began with"),
        ({"data": (torch.randn(400, 6), torch.zeros(400, dtype=torch.int32))}, r"data\.record="),
        ({"data_name": "others"}, r"data\.name='others': differs from .* 'data'"),
        ({"plan": plan(population=401)}, r"plan\.population=401"),
        (
            {"model": nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))},
            r"model\.weights\.0\.weight=\['float32', \[9, 6\], 'trained'\]",
        ),
    ],
)
def test_another_configuration_or_other_data_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    interrupted(tmp_path / "run", 7)
    loss = {"loss": lambda out, y: out.sum(1)} if "data" in changes else {}
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path / "run", **changes, **loss).resume()


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no run; give the folder that training printed"):
        trainer(tmp_path / "run").resume()


def test_snapshots_allow_any_horizon_afterwards_also_across_an_interruption(tmp_path: Path) -> None:
    broken(tmp_path / "run", 13, averages=[Snapshots(every=3)])
    last = trainer(tmp_path / "run", averages=[Snapshots(every=3)])
    outcome = last.resume()
    snapshots = stored_snapshots(CheckpointStore(tmp_path / "run" / "store"))
    # 10 updates before the checkpoint and 11 after it: snapshots of the lost steps are gone.
    assert [s.step for s in snapshots if s.gamma == 2.0] == [3, 6, 9, 12, 15, 18, 21]
    assert outcome.steps == 21
    assert reconstruct(last.model, snapshots, gamma=4.0).residual < 0.2


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    newest = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(bytes(data))
    outcome = trainer(tmp_path / "run").resume()
    assert (outcome.steps, outcome.lost) == (STEPS - 2, 2)  # from step 10 instead of 12
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert any("does not have its hash: it was changed" in note for note in notes)


def test_without_a_whole_checkpoint_there_is_no_resuming(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    for path in (tmp_path / "run" / "checkpoints").glob("*.json"):
        path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"all are damaged: file='000000012\.json': cannot be read"):
        trainer(tmp_path / "run").resume()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(DataError, match="are missing, but 12 steps are charged"):
        trainer(tmp_path / "run").resume()


def test_a_damaged_store_is_set_aside_and_the_run_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    (tmp_path / "run" / "store" / "index.json").write_text("{")
    outcome = trainer(tmp_path / "run").resume()
    assert (outcome.steps, outcome.lost) == (STEPS, 0)
    (aside,) = (tmp_path / "run").glob("store-damaged-*")
    assert len(list(aside.glob("*.safetensors"))) == 3
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert any(f"The store is now {aside.name}" in note for note in notes)


def test_a_manifest_that_is_no_object_is_passed_over(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    max((tmp_path / "run" / "checkpoints").glob("*.json")).write_text("[]")
    assert trainer(tmp_path / "run").resume().lost == 2


def test_a_run_on_a_plateau_can_be_resumed(tmp_path: Path) -> None:
    def begun(**changes: Any) -> Trainer:
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        own = {"model": model, "optimizer": optimizer, "scheduler": plateau, "averages": ()}
        return trainer(tmp_path / "run", **own, **changes)

    with pytest.raises(Interrupted):
        begun(callbacks=[stop_at(7)]).fit()
    assert begun().resume().steps == STEPS
