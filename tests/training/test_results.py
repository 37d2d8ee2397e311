"""What a run leaves behind when it is over."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training_cases import STEPS, plan, raising, trainer

from steppe import SeededSource
from steppe.errors import ConfigurationError
from steppe.ledger import Ledger
from steppe.training import StepInfo, read_log
from steppe.utils.formatting import rounded_up


def test_the_published_weights_are_the_models(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run")
    own.fit()
    for name, tensor in load_file(tmp_path / "run" / "model.safetensors").items():
        assert torch.equal(tensor, own.model.state_dict()[name])


def test_runs_on_one_ledger_add_up(tmp_path: Path) -> None:
    shared = tmp_path / "ledger.jsonl"
    for name in ("one", "two"):
        outcome = trainer(tmp_path / name, ledger=shared).fit()
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    assert result["ledger"]["runs"] == 2
    assert result["ledger"]["epsilon"] == Ledger(shared).epsilon(1e-4) > outcome.epsilon
    assert outcome.ledger == {**result["ledger"], "path": str(shared)}
    assert result["ledger"]["path"] == "../ledger.jsonl"
    assert str(tmp_path) not in (tmp_path / "two" / "result.json").read_text()
    aside = tmp_path / "ann" / "secret" / "l.jsonl"
    trainer(tmp_path / "three", ledger=aside).fit()
    written = json.loads((tmp_path / "three" / "result.json").read_text())
    assert written["ledger"]["path"] == "l.jsonl"  # no way through other folders
    total = rounded_up(result["ledger"]["epsilon"], 4)
    assert f"\nall 2 runs of the ledger together: ε = {total} at δ = 0.0001\nledger: " in str(
        outcome
    )
    assert "together" not in str(replace(outcome, ledger={**outcome.ledger, "runs": 1}))


def test_a_finished_run_has_its_result_whatever_the_ledger_adds_up_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ConfigurationError("delta=1e-12: is below 1.1e-12")
    monkeypatch.setattr(Ledger, "epsilon", raising(error))
    outcome = trainer(tmp_path / "run").fit()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["epsilon"] == outcome.epsilon == plan().epsilon_spent()
    assert result["ledger"] is None
    notes = [line["text"] for line in read_log(tmp_path / "run" / "log.jsonl") if "text" in line]
    (note,) = notes
    assert note.startswith("there is no sum of all runs in the ledger: ConfigurationError at ")
    assert "1e-12" not in note


@pytest.mark.parametrize("seeded", [0, 1])
def test_a_seeded_run_makes_the_sum_of_its_ledger_infinite_with_a_reason(
    tmp_path: Path, seeded: int
) -> None:
    shared = tmp_path / "ledger.jsonl"
    for place in range(2):
        source = {"source": SeededSource(0)} if place == seeded else {}
        outcome = trainer(tmp_path / str(place), ledger=shared, **source).fit()
    found = json.loads((tmp_path / "1" / "result.json").read_text())["ledger"]
    assert found["epsilon"] is None
    assert found["not_private_reason"] == "the noise of 1 of 2 runs is known"
    total = "all 2 runs of the ledger together: ε = ∞ at δ = 0.0001"
    assert f"{total}, since the noise of 1 of 2 runs is known\n" in str(outcome)


def test_a_score_that_is_not_a_number_any_more_is_stored_as_null(tmp_path: Path) -> None:
    def broken(model: nn.Module) -> dict[str, float]:
        return {"quality": float("nan")}

    outcome = trainer(tmp_path / "run", averages=(), evaluate=broken).fit()
    assert outcome.steps == STEPS
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["table"][0]["quality"] is None
    assert "nan" in str(outcome)


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
        r"there is no table of scores: RuntimeError at test_results\.py:\d+", notes[-1]
    )
    first = str(outcome).splitlines()[0]
    assert first == "no scores: the evaluation failed (RuntimeError), see log.jsonl"
    for path in (tmp_path / "run").glob("*.json*"):
        assert "John Smith" not in path.read_text()
