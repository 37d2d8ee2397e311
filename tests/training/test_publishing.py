"""Which model of a run is published: fixed before the first step, marked, and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from training_cases import STEPS, pairs, plan, trainer

from steppe.averaging import OPA
from steppe.errors import ConfigurationError
from steppe.training import OutputAverage, Trainer, config, publishing
from steppe.training.outcome import as_lines

KEPT = ["EMA(decay=0.9, warmup=1)", "EMA(decay=0.99, warmup=1)", "PolynomialDecay(gamma=4)"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, "last"),
        ("last", "last"),
        ("EMA(decay=0.9)", KEPT[0]),
        ("EMA(decay=0.99)", KEPT[1]),
        (KEPT[1], KEPT[1]),
        ("PolynomialDecay", KEPT[2]),
        ("PolynomialDecay(gamma=4)", KEPT[2]),
    ],
)
def test_a_name_is_as_long_as_it_must_be(given: str | None, found: str) -> None:
    assert publishing.find(given, KEPT) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("EMA", r"publish='EMA': is ambiguous between EMA\(decay=0.9, warmup=1\), EMA\(decay=0.99"),
        ("EMA(decay=0.999)", r"is not a model of weights that this run keeps; publish last or EMA"),
        ("SWA", r"publish='SWA': is not a model of weights that this run keeps"),
        ("", "is not a model of weights"),
        (7, "publish=7: must be the name of a model"),
    ],
)
def test_a_name_that_is_not_kept_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        publishing.find(given, KEPT)


def published(run: Path) -> tuple[str, dict[str, torch.Tensor]]:
    with safe_open(run / "published.safetensors", framework="pt") as file:
        return file.metadata()["model"], load_file(run / "published.safetensors")


def test_the_weights_of_the_chosen_average_are_published(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = trainer(run, publish="EMA").fit()
    name, weights = published(run)
    assert name == outcome.published == "EMA(decay=0.9, warmup=1)"
    average = load_file(run / "averages" / "EMA_decay=0.9_warmup=1.safetensors")
    last = load_file(run / "model.safetensors")
    assert all(torch.equal(weights[key], average[key]) for key in average)
    assert any(not torch.equal(weights[key], last[key]) for key in last)
    assert json.loads((run / "result.json").read_text())["published"] == name
    assert json.loads((run / "config.json").read_text())["settings"]["publish"] == name
    lines = str(outcome).splitlines()
    assert [line for line in lines if ", published " in line] == [lines[3]]
    assert lines[3].startswith(name)


def test_averages_of_ones_own_leave_the_last_weights_published(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = trainer(run).fit()
    name, weights = published(run)
    assert name == outcome.published == "last"
    last = load_file(run / "model.safetensors")
    assert all(torch.equal(weights[key], last[key]) for key in last)
    assert json.loads((run / "config.json").read_text())["settings"]["publish"] == "last"


def test_a_run_without_averages_publishes_the_last_weights(tmp_path: Path) -> None:
    outcome = trainer(tmp_path / "run", averages=()).fit()
    assert published(tmp_path / "run")[0] == "last"
    assert ", published" not in str(outcome)  # one model alone needs no mark


def test_by_rule_the_exponential_average_is_published(tmp_path: Path) -> None:
    own = Trainer(
        nn.Linear(6, 2), pairs(400), plan(), run=tmp_path / "run", evaluate=None, progress=False
    )
    assert own.publish.startswith("EMA(decay=")
    assert own.reasons["publish"].startswith("EMA, fixed beforehand")
    own.fit()
    assert published(tmp_path / "run")[0] == own.publish


def test_another_choice_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    trainer(tmp_path / "run", publish="EMA").fit()
    with pytest.raises(
        ConfigurationError, match="publish='last': differs from the value that the run began with"
    ):
        trainer(tmp_path / "run").resume()
    assert trainer(tmp_path / "run", publish="EMA").resume().published.startswith("EMA")


def test_averages_of_outputs_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"publish='OPA': is not a model of weights"):
        trainer(tmp_path / "run", averages=[OutputAverage(OPA, 3)], publish="OPA")


def test_where_the_run_ends_before_the_average_begins_the_last_is_published(
    tmp_path: Path,
) -> None:
    own = trainer(
        tmp_path / "run", publish="SWA", callbacks=[lambda moment: moment.step == STEPS // 4]
    )
    outcome = own.fit()
    assert outcome.published == published(tmp_path / "run")[0] == "last"
    assert "SWA(cycle=1, warmup=10) had not begun" in (tmp_path / "run" / "log.jsonl").read_text()


TABLES: dict[str, Any] = {
    "data": {"place": "publishing_test_data:rows", "classes": 2},
    "model": {"name": "logistic"},
    "plan": {"epsilon": 8.0, "delta": 1e-4, "batch_size": 100, "steps": 20, "population": 400},
    "optimizer": {"name": "SGD", "lr": 0.5},
}
DATA = """
import torch


def rows():
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "publishing_test_data.py").write_text(DATA)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "EMA(decay=0.6, warmup=1)"),
        ({"train": {"publish": "last"}}, "last"),
        ({"train": {"publish": "Window"}}, "Window(k=4, block=4)"),
        ({"averages": {"SWA": {}}}, "last"),
        ({"averages": {}}, "last"),
        (
            {
                "averages": {"EMA": [{"decay": 0.9}, {"decay": 0.99}]},
                "train": {"publish": "EMA(decay=0.99)"},
            },
            "EMA(decay=0.99, warmup=1)",
        ),
    ],
)
@pytest.mark.usefixtures("data")
def test_a_file_chooses_it_or_the_recipe_does(
    tmp_path: Path, more: dict[str, Any], name: str
) -> None:
    made = config.Config({**TABLES, **more}).trainer(tmp_path / "run", progress=False)
    assert made.publish == name
    assert ("publish" in made.reasons) == (not more)
    assert made.fit().published == name
    again = config.read(tmp_path / "run" / "run.toml")
    assert again.tables["train"]["publish"] == name
    assert config.resume(tmp_path / "run", progress=False).published == name


@pytest.mark.usefixtures("data")
def test_a_file_that_names_what_is_not_kept_is_refused() -> None:
    tables = {**TABLES, "averages": {"EMA": {"decay": 0.9}}, "train": {"publish": "SWA"}}
    with pytest.raises(ConfigurationError, match=r"publish='SWA': .* publish last or EMA"):
        config.Config(tables).assemble()
    with pytest.raises(ConfigurationError, match=r"train\.publish=3: must be text"):
        config.Config({**TABLES, "train": {"publish": 3}})


def test_one_row_is_marked() -> None:
    table = [{"model": "last", "loss": 0.5}, {"model": "EMA", "loss": 0.25}]
    assert as_lines(table, "EMA")[2].split() == ["EMA,", "published", "0.2500"]
    assert "published" not in "".join(as_lines(table[:1], "last"))
    assert "published" not in "".join(as_lines(table))
