"""The demo says what its data are, learns, and leaves a run behind that holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from steppe import demo
from steppe.errors import ConfigurationError, DataError
from steppe.models import Patches
from steppe.training import read_log

MADE_UP = demo.Task("A test.", {"place": "steppe.demo:pictures", "classes": 10}, synthetic=True)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> demo.DemoResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_RECORDS", 2_000)
        patch.setattr(demo, "_HELD_OUT", 300)
        patch.setitem(Patches.fit.__kwdefaults__, "pictures", 1_500)  # type: ignore[arg-type]
        folder = tmp_path_factory.mktemp("demo") / "run"
        return demo.run(MADE_UP, folder=folder, progress=False)


def test_every_average_is_scored(result: demo.DemoResult) -> None:
    rows = result.rows()
    assert [row["name"] for row in rows] == list(demo.ORDER)
    assert min(row["accuracy"] for row in rows) > 0.2  # a guess is right in a tenth


def test_the_budget_is_kept_and_spent(result: demo.DemoResult) -> None:
    assert 1.99 < result.outcome.epsilon <= 2.0
    assert result.outcome.statement.not_private_reason is None


def test_the_run_and_its_report_are_there(result: demo.DemoResult) -> None:
    assert result.report == result.outcome.run / "report.html"
    assert "<html" in result.report.read_text()
    assert (result.outcome.run / "run.toml").exists()
    kinds = {line["kind"] for line in read_log(result.outcome.run / "log.jsonl")}
    assert "evaluation" in kinds
    assert result.preparation > 0


def test_synthetic_pictures_are_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_RECORDS", 30)
    x, y, held_out, _ = demo.pictures()
    assert torch.equal(x, demo.pictures()[0])
    assert (len(x), len(held_out)) == (30, 4_000)
    assert 0 <= int(y.min()) <= int(y.max()) < 10


def test_without_mnist_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise DataError(f"name={name!r}: could be had from none of its sources; connect.")

    monkeypatch.setattr(demo, "load", unreachable)
    task = demo.digits()
    assert task.synthetic
    assert task.about.startswith("MNIST is not available: name='mnist': could be had from none")
    assert "SYNTHETIC DATA instead: 20,000 generated 16×16 pictures" in task.about


def test_a_folder_that_is_there_already_is_left_alone(result: demo.DemoResult) -> None:
    before = sorted(path.name for path in Path(result.outcome.run).iterdir())
    with pytest.raises(ConfigurationError, match="is there already; name a new folder"):
        demo.run(MADE_UP, folder=result.outcome.run, progress=False)
    assert sorted(path.name for path in Path(result.outcome.run).iterdir()) == before
