"""The demo says what its data are, learns, and leaves a run behind that holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from steppe import demo
from steppe.errors import ConfigurationError, DataError
from steppe.training import read_log

NAMES = ["last", "SWA", "EMA", "UPA", "PDA", "OPA", "OMV"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> demo.Result:
    task = demo.made_up("A test.", records=2_000, held_out=300)
    folder = tmp_path_factory.mktemp("demo") / "run"
    return demo.run(folder=folder, task=task, progress=False)


def test_every_average_is_scored(result: demo.Result) -> None:
    rows = result.rows()
    assert [row["name"] for row in rows] == NAMES
    assert min(row["accuracy"] for row in rows) > 0.2  # a guess is right in a tenth


def test_the_budget_is_kept_and_spent(result: demo.Result) -> None:
    assert 1.99 < result.outcome.epsilon <= 2.0
    assert result.outcome.statement.not_private_reason is None


def test_the_run_and_its_report_are_there(result: demo.Result) -> None:
    assert result.report == result.outcome.run / "report.html"
    assert "<html" in result.report.read_text()
    kinds = {line["kind"] for line in read_log(result.outcome.run / "log.jsonl")}
    assert "evaluation" in kinds
    assert result.feature_seconds > 0


def test_made_up_pictures_are_the_same_every_time_and_say_so() -> None:
    task = demo.made_up("No network.", records=30, held_out=6)
    again = demo.made_up("No network.", records=30, held_out=6)
    assert torch.equal(task.train[0], again.train[0])
    assert (len(task.train[1]), len(task.test[1])) == (30, 6)
    assert task.made_up
    assert task.about.startswith("No network. SYNTHETIC DATA instead: 30 made-up 16×16 pictures")


def test_without_mnist_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise DataError(f"name={name!r}: could be had from none of its sources; connect.")

    monkeypatch.setattr(demo, "load", unreachable)
    task = demo.digits()
    assert task.name == "synthetic"
    assert task.about.startswith("MNIST could not be had: name='mnist': could be had from none")
    assert "SYNTHETIC DATA" in task.about


def test_a_folder_that_holds_a_run_already_is_left_alone(result: demo.Result) -> None:
    task = demo.made_up("A test.", records=200, held_out=30)
    before = sorted(path.name for path in Path(result.outcome.run).iterdir())
    with pytest.raises(ConfigurationError, match="is there already; name a folder that is not"):
        demo.run(folder=result.outcome.run, task=task, progress=False)
    assert sorted(path.name for path in Path(result.outcome.run).iterdir()) == before
