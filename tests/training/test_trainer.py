"""The trainer from the first step to the table, and what may stop it on the way."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset
from training_cases import STEPS, pairs, plan, raising, trainer

from steppe import GEP, SAT, Plan, SeededSource
from steppe.averaging import (
    EMA,
    OMV,
    OPA,
    SWA,
    CheckpointStore,
    Keep,
    reconstruct,
    stored_snapshots,
)
from steppe.clipping import Automatic
from steppe.errors import (
    BudgetExhausted,
    ConfigurationError,
    DataError,
    MisuseError,
    StorageError,
)
from steppe.ledger import Ledger
from steppe.training import Interrupted, OutputAverage, Snapshots, StepInfo, Trainer, read_log
from steppe.training.lr_schedule import LRSchedule
from steppe.training.progress import Bar


def stop_at(step: int) -> Any:
    """A callback that presses Ctrl-C in the middle of a step's aftermath."""

    def press(moment: StepInfo) -> None:
        if moment.step == step:
            signal.raise_signal(signal.SIGINT)

    return press


def fail_at(step: int, error: Exception) -> Any:
    def fail(moment: StepInfo) -> None:
        if moment.step == step:
            raise error

    return fail


def broken(run: Path, step: int, **changes: Any) -> None:
    """A run in which a step fails half way."""
    own = trainer(run, **changes)
    steps = iter(range(1, STEPS + 1))

    def fail(*_: Any) -> None:
        if next(steps) == step:
            raise ZeroDivisionError

    own.optimizer.register_step_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        own.fit()


def interrupted(run: Path, step: int, **changes: Any) -> None:
    with pytest.raises(Interrupted):
        trainer(run, callbacks=[stop_at(step)], **changes).fit()


def charged(run: Path) -> int:
    (only,) = Ledger(run / "ledger.jsonl").runs().values()
    return only.charged


def test_a_whole_run(tmp_path: Path) -> None:
    outcome = trainer(tmp_path / "run").fit()
    assert outcome.steps == STEPS
    assert outcome.lost == 0
    assert outcome.epsilon == plan().epsilon_spent()
    names = ["last", "SWA(cycle=1, warmup=10)", "EMA(decay=0.9, warmup=1)", "OPA(k=3)", "OMV(k=3)"]
    assert [row["model"] for row in outcome.table] == names
    assert all(row["accuracy"] > 0.7 for row in outcome.table)
    assert all(row["seconds"] > outcome.seconds for row in outcome.table)
    assert str(outcome).splitlines()[0].split() == ["model", "accuracy", "loss", "time"]
    assert "ε = " in str(outcome)
    assert "NOT PRIVATE" not in str(outcome)


def test_a_printed_epsilon_is_never_below_the_true_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = trainer(tmp_path / "run", averages=(), evaluate=None).fit()
    assert "ε = 1.0001 at" in str(replace(outcome, epsilon=1.00001))
    with Bar(True, 2, 0) as bar:
        bar.step(1.00001)
        bar.step(1.00001)
    assert "ε at most=1.001" in capsys.readouterr().err


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


def test_the_log_holds_evaluations_with_their_epsilon(tmp_path: Path) -> None:
    trainer(tmp_path / "run", evaluate_every=12).fit()
    lines = read_log(tmp_path / "run" / "log.jsonl")
    assert {(line["kind"], line["step"]) for line in lines} == {
        ("evaluation", 12),
        ("evaluation", STEPS),
    }
    for line in lines:
        assert line["epsilon"] == plan().epsilon_spent(line["step"])
        assert line["seconds"] > 0


def test_without_evaluation_there_is_no_table(tmp_path: Path) -> None:
    outcome = trainer(tmp_path / "run", evaluate=None).fit()
    assert outcome.table == ()
    assert "no scores: no held-out records were given" in str(outcome)
    assert not read_log(tmp_path / "run" / "log.jsonl")


def test_model_data_and_plan_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def own(data: Any) -> Trainer:
        torch.manual_seed(0)
        budget = Plan(epsilon=8.0, delta=1e-4, batch_size=200, steps=40)  # the population is read
        return Trainer(nn.Linear(6, 2), data, budget, run=tmp_path / "run", evaluate=pairs(200, 1))

    first = own(pairs(1000))
    assert first.reasons["optimizer"].startswith("SGD(lr=")
    first.callbacks = (stop_at(20),)
    with pytest.raises(Interrupted):
        first.fit()
    outcome = own(pairs(1000)).resume()  # by rule means the same again
    assert [row["model"].partition("(")[0] for row in outcome.table] == [
        "last",
        "EMA",
        "SWA",
        "Window",
        "PolynomialDecay",
    ]
    assert outcome.table[1]["accuracy"] > 0.9
    said = capsys.readouterr().err
    for name, why in first.reasons.items():
        assert f"chosen: {name} = {why}" in said
    assert "resumed from the checkpoint after step 20" in said
    assert json.loads((tmp_path / "run" / "config.json").read_text())["reasons"] == first.reasons


def test_a_function_may_evaluate(tmp_path: Path) -> None:
    outcome = trainer(tmp_path / "run", averages=(), evaluate=lambda model: {"size": 3}).fit()
    (row,) = outcome.table
    assert row["seconds"] > outcome.seconds
    rest = {name: value for name, value in row.items() if name != "seconds"}
    assert rest == {"model": "last", "accuracy": None, "loss": None, "size": 3.0}


def test_callbacks_see_every_step_and_may_end_the_run(tmp_path: Path) -> None:
    seen: list[StepInfo] = []

    def look(moment: StepInfo) -> bool:
        seen.append(moment)
        return moment.step == 7

    outcome = trainer(tmp_path / "run", callbacks=[look], evaluate_every=3).fit()
    assert [moment.step for moment in seen] == [1, 2, 3, 4, 5, 6, 7]
    assert [moment.step for moment in seen if moment.table] == [3, 6]
    assert outcome.steps == charged(tmp_path / "run") == 7
    assert outcome.epsilon == plan().epsilon_spent(7)


@pytest.mark.parametrize(("answer", "steps"), [(np.bool_(True), 1), (1, 40), ("stop", 40)])
def test_a_callback_ends_the_run_by_true_alone(tmp_path: Path, answer: object, steps: int) -> None:
    """As NumPy's comparisons say it too; losses and texts that a callback returns are no answer."""
    run = trainer(tmp_path / "run", callbacks=[lambda moment: answer])
    assert run.fit().steps == min(steps, run.plan.total_steps)


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    trainer(tmp_path / "run").fit()
    with pytest.raises(MisuseError, match=r"holds a run already; go on with `Trainer\(…, run="):
        trainer(tmp_path / "run").fit()


def test_remains_of_another_run_are_not_stumbled_over(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(MisuseError, match="holds a run already"):
        trainer(tmp_path / "run").fit()


def test_a_seeded_run_is_stamped_wherever_it_leaves_something(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = trainer(run, source=SeededSource(0)).fit()
    reason = SeededSource.not_private_reason
    lines = str(outcome).splitlines()
    assert lines[0] == f"NOT PRIVATE: {reason}"
    assert lines[-2].startswith(f"ε = none at δ = 0.0001, {STEPS} steps")
    assert outcome.epsilon is None
    result, statement, index = (
        json.loads((run / name).read_text())
        for name in ("result.json", "statement.json", "store/index.json")
    )
    for found in (result, statement, index):
        assert found["not_private_reason"] == reason
    assert result["epsilon"] is result["ledger"]["epsilon"] is statement["epsilon"] is None
    assert {entry["epsilon"] for entry in index["entries"]} == {None}
    log = read_log(run / "log.jsonl")
    assert log[0]["text"] == f"NOT PRIVATE: {reason}"
    assert {line["epsilon"] for line in log} == {None}
    for path in (run / "checkpoints").glob("*.json"):
        assert json.loads(path.read_text())["not_private_reason"] == reason
    weights = [run / "model.safetensors", run / "published.safetensors"]
    weights += (run / "averages").iterdir()
    weights += (run / "store").glob("*.safetensors")
    assert len(weights) == 4 + STEPS // 4
    for path in weights:
        with safe_open(path, "pt") as file:
            assert file.metadata()["not_private_reason"] == reason, path
    (known,) = Ledger(run / "ledger.jsonl").runs().values()
    assert known.not_private_reason == reason


def test_a_callback_of_a_seeded_run_sees_an_infinite_epsilon(tmp_path: Path) -> None:
    seen: list[float] = []
    trainer(
        tmp_path / "run",
        source=SeededSource(0),
        callbacks=[lambda moment: seen.append(moment.epsilon)],
    ).fit()
    assert set(seen) == {math.inf}


def test_an_interrupted_seeded_run_prints_no_epsilon(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped after step 7 of 24 at ε = none; nothing is"):
        trainer(tmp_path / "run", source=SeededSource(0), callbacks=[stop_at(7)]).fit()


# ---------------------------------------------------------------- Ctrl-C


def test_ctrl_c_stops_after_the_step_and_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"stopped after step 7 of 24 .*run=.*\.resume\(\)"):
        trainer(tmp_path / "run", callbacks=[stop_at(7)]).fit()
    assert charged(tmp_path / "run") == 7  # what was charged and not begun was given back
    outcome = trainer(tmp_path / "run").resume()
    assert (outcome.steps, outcome.lost) == (STEPS, 0)
    assert outcome.epsilon == plan().epsilon_spent()


def test_a_second_ctrl_c_stops_at_once_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    def twice(moment: StepInfo) -> None:
        if moment.step == 7:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", callbacks=[twice]).fit()
    outcome = trainer(tmp_path / "run").resume()
    assert (outcome.steps, outcome.lost) == (STEPS - 2, 2)  # since the checkpoint of step 5


def test_the_handler_of_ctrl_c_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer(tmp_path / "run").fit()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_same_object_can_go_on(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run", callbacks=[stop_at(7)])
    with pytest.raises(Interrupted):
        own.fit()
    assert own.resume().steps == STEPS


# ---------------------------------------------------------------- resume


def test_an_error_after_a_step_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path / "run", callbacks=[fail_at(13, ZeroDivisionError())]).fit()
    assert charged(tmp_path / "run") == 13
    outcome = trainer(tmp_path / "run").resume()
    assert (outcome.steps, outcome.lost) == (STEPS, 0)


def test_an_error_in_a_step_loses_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    broken(tmp_path / "run", 13)
    assert charged(tmp_path / "run") == 13
    outcome = trainer(tmp_path / "run").resume()
    assert (outcome.steps, outcome.lost) == (STEPS - 3, 3)
    assert outcome.epsilon == plan().epsilon_spent()
    assert charged(tmp_path / "run") == STEPS
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert notes == [
        "resumed from the checkpoint after step 10; 3 steps were charged after it and are lost"
    ]


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
        assert [average.updates for average in own.kept.averages.values()] == [11, 11]
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
        own.folder.begin(own.plan, own.statement, own._config("an id"), own.toml)
    assert trainer(tmp_path / "run").resume().steps == STEPS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.25}, r"optimizer\.groups=.*is not what the run began with"),
        ({"plan": plan(steps=30)}, r"plan\.steps=30: is not what the run began with, 24"),
        ({"averages": ()}, r"averages=\[\]: is not what the run began with"),
        ({"data": (torch.zeros(400, 6), torch.zeros(400, dtype=torch.int32))}, r"data\.record="),
        ({"data_name": "others"}, r"data\.name='others': is not .* 'data'"),
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
    with pytest.raises(DataError, match="holds no run; give the folder that training printed"):
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


# ---------------------------------------------------------------- damage


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
    with pytest.raises(DataError, match=r"none is whole: file='000000012\.json': cannot be read"):
        trainer(tmp_path / "run").resume()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(DataError, match="are gone, and 12 steps are charged"):
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


def test_models_are_published_even_where_they_cannot_be_scored(tmp_path: Path) -> None:
    def damage(moment: StepInfo) -> None:
        if moment.step == STEPS - 1:
            max((tmp_path / "run" / "store").glob("*.safetensors")).unlink()

    outcome = trainer(tmp_path / "run", callbacks=[damage], store_every=5).fit()
    assert len(outcome.table) == 3  # the last weights and both averages of weights
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert len(list((tmp_path / "run" / "averages").iterdir())) == 2
    assert (tmp_path / "run" / "result.json").exists()
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert re.fullmatch(r"outputs are not averaged: DataError at \w+\.py:\d+", notes[-1])


def test_an_evaluation_that_fails_at_the_end_costs_the_table_alone(tmp_path: Path) -> None:
    over: list[bool] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        if over:
            raise RuntimeError("secret row 17: John Smith")
        return {"loss": 1.0}

    def notice(moment: StepInfo) -> None:
        if moment.step == STEPS:
            over.append(True)

    outcome = trainer(tmp_path / "run", callbacks=[notice], evaluate=evaluate).fit()
    assert outcome.table == ()
    assert (tmp_path / "run" / "result.json").exists()
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert re.fullmatch(
        r"there is no table of scores: RuntimeError at test_trainer\.py:\d+", notes[-1]
    )
    first = str(outcome).splitlines()[0]
    assert first == "no scores: the evaluation failed (RuntimeError), see log.jsonl"
    for path in (tmp_path / "run").glob("*.json*"):
        assert "John Smith" not in path.read_text()


def test_a_cut_ledger_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 12)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(DataError, match="it was cut or exchanged"):
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


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    def second(moment: StepInfo) -> None:
        if moment.step == 3:
            for begin in (trainer(tmp_path / "run").fit, trainer(tmp_path / "run").resume):
                with pytest.raises(MisuseError, match="another process writes to it"):
                    begin()

    assert trainer(tmp_path / "run", callbacks=[second]).fit().steps == STEPS


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


def test_an_error_about_a_file_of_ones_own_stays_what_it_is(tmp_path: Path) -> None:
    def gone(moment: StepInfo) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(tmp_path / "mine"))

    with pytest.raises(FileNotFoundError):
        trainer(tmp_path / "run", callbacks=[gone]).fit()


def test_a_run_has_a_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^run='': must name a folder; write run="):
        trainer("")  # type: ignore[arg-type]


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


# ---------------------------------------------------------------- full disk


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


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": None}, "belongs to an optimizer; pass that optimizer too"),
        (
            {"optimizer": None, "scheduler": None, "plan": plan(clip=Automatic())},
            "`optimizer` is chosen by rule for Flat, and the plan clips by Automatic",
        ),
        ({"store_every": None}, r"averages='OPA\(k=3\)': needs a store; set store_every"),
        ({"store_every": 0}, "store_every=0: must be a whole number"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"evaluate_every": -3}, "evaluate_every=-3"),
        ({"block": 0}, "block=0"),
        ({"averages": ["EMA"]}, "averages='EMA': is no average"),
        (
            {"averages": [OutputAverage(OPA, 3), OutputAverage(OPA, 3)]},
            r"averages='OPA\(k=3\)': is the name of 2 averages, which a table cannot tell apart",
        ),
        ({"scheduler": 3}, "scheduler='int': must be a torch learning-rate scheduler"),
        ({"evaluate": torch.zeros(3, 6)}, "evaluate='Tensor': must give pairs"),
        ({"callbacks": [5]}, "callbacks=5: is no function; give functions"),
        ({"callbacks": print}, "callbacks='builtin_function_or_method': must be a list"),
        ({"keep": 5}, r"keep=5: must be a steppe\.averaging\.Keep"),
        (
            {"keep": Keep(last=3), "store_every": None, "averages": ()},
            "chooses among stored checkpoints, and none are stored",
        ),
        (
            {"averages": [EMA(nn.Linear(5, 2), 0.9)]},
            "model='weight': has no tensor of this name, so it is another model",
        ),
        ({"averages": EMA(nn.Linear(5, 2), 0.9)}, "averages='EMA': must be a list"),
        (
            {"averages": [SWA(nn.Linear(6, 2), warmup=25)], "model": nn.Linear(6, 2)},
            r"averages='SWA\(cycle=1, warmup=25\)': would begin after the 24 steps of the plan",
        ),
        (
            {"averages": [OutputAverage(OPA, 7)]},
            r"averages='OPA\(k=7\)': needs more than the 6 checkpoints that the run will have",
        ),
        (
            {"averages": [OutputAverage(OPA, 3)], "keep": Keep(last=2)},
            "needs more than the 2 checkpoints that the run will have stored",
        ),
        ({"averages": [Snapshots(every=25)]}, "would take none in the 24 steps of the plan"),
        ({"store_every": 25}, "store_every=25: would store no checkpoint in the 24 steps"),
        ({"ledger": 5}, "ledger=5: must be a path"),
        ({"data_name": Path("x")}, "data_name=PosixPath.*: must be text"),
        ({"also_read": [5]}, "also_read=5: must be text"),
        (
            {"data": (torch.zeros(400, 6), torch.zeros(400)), "loss": lambda out, y: out.sum(1)},
            r"averages='OPA\(k=3\)': averages the probabilities of classes, and this run has none",
        ),
        (
            {"loss": F.mse_loss, "model": nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))},
            "and this run has none: they take whole-number labels, a loss such as cross_entropy",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((5, plan(), None), "model='int': must be a torch Module; pass one"),
        ((nn.Linear(6, 2), {"epsilon": 3.0}, None), "plan='dict': must be a steppe Plan; pass one"),
        ((nn.Linear(6, 2), plan(), "SGD"), "optimizer='str': must be a torch Optimizer; pass one"),
    ],
)
def test_a_trainer_has_a_model_a_plan_and_an_optimizer(
    tmp_path: Path, parts: tuple[Any, Any, Any], message: str
) -> None:
    model, budget, optimizer = parts
    with pytest.raises(ConfigurationError, match=message):
        Trainer(model, pairs(400), budget, optimizer=optimizer, run=tmp_path / "run")


def test_a_folder_is_a_path() -> None:
    with pytest.raises(ConfigurationError, match="run=5: must be a path; write run="):
        trainer(5)  # type: ignore[arg-type]


def test_a_plateau_needs_public_data(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
    own = {"model": model, "optimizer": optimizer, "scheduler": plateau, "averages": ()}
    with pytest.raises(ConfigurationError, match="must not come from the private data"):
        trainer(tmp_path / "run", **own, evaluate=None)
    trainer(tmp_path / "run", **own, evaluate_every=2).fit()
    assert optimizer.param_groups[0]["lr"] < 0.5


def linear_and_rate() -> tuple[nn.Module, torch.optim.SGD]:
    model = nn.Linear(6, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def raises_at_once(model: nn.Module) -> dict[str, float]:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (
            (torch.zeros(9, 5), torch.zeros(9).long()),
            "evaluate='tuple': the model cannot be scored: RuntimeError: mat1 and mat2",
        ),
        (raises_at_once, "evaluate='raises_at_once': the model cannot be scored: KeyError: 'x';"),
        (lambda model: 0.5, "evaluate='float': must return numbers by name"),
        (lambda model: {"size": "large"}, r"evaluate\['size'\]='str': must be a number"),
        (lambda model: {"size": None}, r"evaluate\['size'\]='NoneType': must be a number"),
        (lambda model: {"model": 1.0}, "evaluate='model': is the name of something else"),
        (lambda model: {"epsilon": 1.0}, "evaluate='epsilon': is the name of something else"),
    ],
)
def test_an_evaluation_that_fails_does_so_before_anything_is_spent(
    tmp_path: Path, evaluate: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path / "run", averages=(), evaluate=evaluate)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_evaluated_on_is_called_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="evaluate=int: must give any record by its number"):
        trainer(tmp_path / "run", evaluate=5)


def test_outputs_without_classes_are_found_by_the_first_scores(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="averages the probabilities of classes"):
        trainer(
            tmp_path / "run",
            model=nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
            loss=lambda out, y: (out - y).square(),
            averages=[OutputAverage(OPA, 3)],
        )


@pytest.mark.parametrize("kind", [OPA, OMV])
def test_outputs_are_not_averaged_with_an_objective(tmp_path: Path, kind: type) -> None:
    def objective(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with pytest.raises(ConfigurationError, match=r"\(k=3\)': asks the model about inputs alone"):
        trainer(tmp_path / "run", objective=objective, averages=[OutputAverage(kind, 3)])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("below", ["file/run", "file/deeper/run"])
def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"cannot be made \(.+\); name a folder in a place"
    ):
        trainer(tmp_path / below).fit()


def test_a_function_that_evaluates_leaves_outputs_unscored_with_a_note(tmp_path: Path) -> None:
    trainer(tmp_path / "run", evaluate=lambda model: {"size": 3}).fit()
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert notes == ["outputs are not averaged: evaluate= is a function and has no targets"]


class Shifted(nn.Module):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self.layer(x + shift)


def test_models_of_several_inputs_are_evaluated(tmp_path: Path) -> None:
    (x, y), (held_x, held_y) = pairs(400), pairs(100, seed=1)
    own = {
        "model": Shifted(),
        "data": (x, torch.full((400, 1), 0.5), y),
        "evaluate": (held_x, torch.full((100, 1), 0.5), held_y),
    }
    made = trainer(tmp_path / "run", **own, averages=())
    (row,) = made.fit().table
    with torch.no_grad():
        outputs = made.model(held_x, torch.tensor(0.5))
    assert row["accuracy"] == pytest.approx(float((outputs.argmax(1) == held_y).double().mean()))
    assert row["loss"] == pytest.approx(float(F.cross_entropy(outputs, held_y)), rel=1e-5)
    with pytest.raises(ConfigurationError, match="asks models of one input, and a record here has"):
        trainer(tmp_path / "other", **own, averages=[OutputAverage(OPA, 3)])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_an_evaluation_is_the_mean_over_records(tmp_path: Path, reduction: str) -> None:
    model = nn.Linear(6, 2)
    held = pairs(1500, seed=1)  # more than are scored at once
    loss = nn.CrossEntropyLoss(reduction=reduction)
    made = trainer(tmp_path / "run", model=model, loss=loss, evaluate=held, averages=())
    (row,) = made.fit().table
    with torch.no_grad():
        assert row["loss"] == pytest.approx(float(F.cross_entropy(model(held[0]), held[1])))


def test_a_schedule_that_fails_does_so_before_anything_is_spent(tmp_path: Path) -> None:
    model, optimizer = linear_and_rate()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=0)
    own = {"model": model, "optimizer": optimizer, "averages": ()}
    with pytest.raises(
        ConfigurationError,
        match=r"scheduler='StepLR': fails within the 24 steps of the plan: ZeroDivisionError",
    ):
        trainer(tmp_path / "run", **own, scheduler=scheduler)
    too_short = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=STEPS - 5)
    with pytest.raises(ConfigurationError, match="scheduler='OneCycleLR': fails within"):
        trainer(tmp_path / "run", **own, scheduler=too_short)


@pytest.mark.parametrize(
    "made",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=99),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, step_size_up=3),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.ConstantLR(optimizer),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            milestones=[4],
        ),
    ],
    ids=["one cycle", "cyclic", "lambda", "sequential"],
)
def test_a_rehearsed_schedule_is_as_good_as_new(made: Any) -> None:
    rates = []
    for rehearsed in (False, True):
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        schedule = LRSchedule(made(optimizer), optimizer, evaluated=False)
        if rehearsed:
            schedule.rehearse(20)
        (group,) = optimizer.param_groups
        seen = []
        for _ in range(20):
            seen.append((group["lr"], group["momentum"]))
            schedule.step()
        rates.append(seen)
    assert rates[0] == rates[1]


def test_a_scheduler_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    model, optimizer = linear_and_rate()
    stranger = torch.optim.lr_scheduler.LinearLR(torch.optim.SGD(model.parameters(), lr=0.5))
    with pytest.raises(ConfigurationError, match="scheduler='LinearLR': is over another optimizer"):
        trainer(tmp_path / "run", model=model, optimizer=optimizer, scheduler=stranger)


def test_a_plateau_needs_a_loss_by_that_name(tmp_path: Path) -> None:
    model, optimizer = linear_and_rate()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    own = {"model": model, "optimizer": optimizer, "scheduler": plateau, "averages": ()}
    with pytest.raises(ConfigurationError, match="follows a loss, and evaluate= gives size"):
        trainer(tmp_path / "run", **own, evaluate=lambda model: {"size": 3})


def test_one_sentence_about_what_was_read_is_one_item(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run", also_read="the range of ages")
    assert own.statement.also_read == ("the range of ages",)


def test_fewer_checkpoints_than_asked_for_are_counted_in_the_name(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run", callbacks=[lambda moment: moment.step == 8])
    names = [row["model"] for row in own.fit().table]
    assert names[-2:] == ["OPA(k=3) of 2 stored", "OMV(k=3) of 2 stored"]


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


@pytest.mark.parametrize(
    "given", ["the same", "a view", "a data set", "every second", "arrays", "a loader", "a subset"]
)
def test_private_records_are_not_for_evaluation(tmp_path: Path, given: str) -> None:
    x, y = data = pairs(400)
    evaluate = {
        "the same": data,
        "a view": (x[50:60], y[50:60]),
        "a data set": TensorDataset(x, y),
        "every second": (x[::2], y[::2]),
        "arrays": (x.numpy(), y.numpy()),
        "a loader": DataLoader(TensorDataset(x, y)),
        "a subset": Subset(TensorDataset(x, y), range(7)),
    }[given]
    with pytest.raises(ConfigurationError, match="are the private records, and scores on them"):
        trainer(tmp_path / "run", data=data, evaluate=evaluate)
    together = pairs(500)
    train, test = tuple(t[:400] for t in together), tuple(t[400:] for t in together)
    trainer(tmp_path / "run", data=train, evaluate=test)
    ours, theirs = torch.utils.data.random_split(TensorDataset(*together), [400, 100])
    trainer(tmp_path / "run", data=ours, evaluate=theirs)


def test_public_records_are_in_the_statement_and_the_settings(tmp_path: Path) -> None:
    def made(public: Any, **changes: Any) -> Trainer:
        clip = GEP(3, 1)
        return trainer(tmp_path / "run", plan=plan(clip=clip), public=public, **changes)

    inputs, _ = data = pairs(400)
    with pytest.raises(ConfigurationError, match="public='tuple': are the private records"):
        made((inputs[:30], torch.zeros(30).long()), data=data)
    with pytest.raises(Interrupted):
        made(pairs(30, seed=2), callbacks=[stop_at(7)]).fit()
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert statement["public_records"] == 30
    words = "The clip also looked at 30 records handed over as public, which ε does not protect"
    assert words in statement["items"]["data accesses"]
    with pytest.raises(ConfigurationError, match="public_records=40: is not what the run began"):
        made(pairs(40, seed=2)).resume()
    assert made(pairs(30, seed=2)).resume().steps == STEPS


def apart_from_weights(run: Path) -> dict[str, Any]:
    """What the files of a run say; of weights, times and ids, and hashes of these, their form."""
    found: dict[str, Any] = {}
    for path in (path for path in run.rglob("*") if path.is_file()):
        name = re.sub(r"-[0-9a-f]{16}\.", ".", path.relative_to(run).as_posix())
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
                found[name] = [file.metadata(), shapes]
        elif path.suffix in (".json", ".jsonl"):
            text = path.read_text()
            values = map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text])
            # How often the log says how fast a run is depends on how fast it is.
            found[name] = [known(value) for value in values if value.get("kind") != "progress"]
        else:
            found[name] = path.read_bytes()
    return found


def known(value: Any) -> Any:
    """JSON with the mere type of what differs between any two runs."""
    varies = ("seconds", "time", "run", "hash", "head", "sha256", "file")
    if isinstance(value, dict):
        return {k: type(v) if k in varies else known(v) for k, v in value.items()}
    return [known(item) for item in value] if isinstance(value, list) else value


def test_nothing_about_private_records_reaches_the_files(tmp_path: Path) -> None:
    """Runs on other records leave the same files, apart from weights; a leak would show there."""

    def constant(_: nn.Module) -> dict[str, float]:
        return {"accuracy": 0.5, "loss": 1.0}  # scores of the weights are public, and would vary

    runs = {tmp_path / "one": pairs(400, seed=2), tmp_path / "two": pairs(400, seed=3)}
    models = {run: trainer(run, data=data, evaluate=constant) for run, data in runs.items()}
    for run, (inputs, _) in runs.items():
        models[run].fit()
        needle = inputs[0, :3].numpy().tobytes()
        assert not any(needle in path.read_bytes() for path in run.rglob("*") if path.is_file())
    one, two = map(apart_from_weights, runs)
    assert len(one) > 20
    assert one == two
    for leak in (  # and the comparison can fail
        lambda model, inputs, labels: labels.tolist(),
        lambda model, inputs, labels: inputs[0].tolist(),
        lambda model, inputs, labels: F.cross_entropy(model(inputs), labels).item(),
    ):
        for run, data in runs.items():
            (run / "plugin.json").write_text(json.dumps({"seen": leak(models[run].model, *data)}))
        one, two = map(apart_from_weights, runs)
        assert one != two
