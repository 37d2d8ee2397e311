"""What follows each step of a run, and what may end it: callbacks, Ctrl-C, errors."""

from __future__ import annotations

import errno
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_cases import STEPS, broken, charged, fail_at, plan, stop_at, trainer

from steppe import SeededSource
from steppe.training import Interrupted, StepInfo, read_log
from steppe.training.progress import Bar


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


def test_an_error_about_a_file_of_ones_own_stays_what_it_is(tmp_path: Path) -> None:
    def gone(moment: StepInfo) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(tmp_path / "mine"))

    with pytest.raises(FileNotFoundError):
        trainer(tmp_path / "run", callbacks=[gone]).fit()


def test_a_printed_epsilon_is_never_below_the_true_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = trainer(tmp_path / "run", averages=(), evaluate=None).fit()
    assert "ε = 1.0001 at" in str(replace(outcome, epsilon=1.00001))
    with Bar(True, 2, 0) as bar:
        bar.step(1.00001)
        bar.step(1.00001)
    assert "ε at most=1.001" in capsys.readouterr().err
