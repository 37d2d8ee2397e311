"""The trainer from its arguments to the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_cases import STEPS, pairs, plan, stop_at, trainer

from steppe import GEP, Plan
from steppe.averaging import EMA, OPA, SWA, Keep
from steppe.clipping import Automatic
from steppe.errors import ConfigurationError
from steppe.training import Interrupted, OutputAverage, Snapshots, Trainer


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


def test_model_data_and_plan_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def own(data: Any, **more: Any) -> Trainer:
        torch.manual_seed(0)
        budget = Plan(epsilon=8.0, delta=1e-4, batch_size=200, steps=40)  # the population is read
        given = {"run": tmp_path / "run", "evaluate": pairs(200, 1), **more}
        return Trainer(nn.Linear(6, 2), data, budget, **given)

    first = own(pairs(1000), callbacks=[stop_at(20)])
    assert first.reasons["optimizer"].startswith("SGD(lr=")
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": None}, "belongs to an optimizer; pass that optimizer too"),
        (
            {"optimizer": None, "scheduler": None, "plan": plan(clip=Automatic())},
            "`optimizer` is chosen by rule for Flat only, and the plan's clip is Automatic",
        ),
        ({"store_every": None}, r"'OPA\(k=3\)': needs stored checkpoints; set store_every"),
        ({"store_every": 0}, "store_every=0: must be a whole number"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"evaluate_every": -3}, "evaluate_every=-3"),
        ({"block": 0}, "block=0"),
        ({"averages": ["EMA"]}, "averages='EMA': is not an average"),
        (
            {"averages": [OutputAverage(OPA, 3), OutputAverage(OPA, 3)]},
            r"averages='OPA\(k=3\)': is the name of 2 averages, which the table could not",
        ),
        ({"scheduler": 3}, "scheduler='int': must be a torch learning-rate scheduler"),
        ({"evaluate": torch.zeros(3, 6)}, "evaluate='Tensor': must give pairs"),
        ({"callbacks": [5]}, "callbacks=5: is not a function; give functions"),
        ({"callbacks": print}, "callbacks='builtin_function_or_method': must be a list"),
        ({"keep": 5}, r"keep=5: must be a steppe\.averaging\.Keep"),
        (
            {"keep": Keep(last=3), "store_every": None, "averages": ()},
            "selects stored checkpoints, but none are stored",
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
        ({"averages": [Snapshots(every=25)]}, "would take no snapshot in the 24 steps of the plan"),
        ({"store_every": 25}, "store_every=25: would store no checkpoint in the 24 steps"),
        ({"ledger": 5}, "ledger=5: must be a path"),
        ({"data_name": Path("x")}, r"data\.name='x': must be text"),
        ({"also_read": [5]}, "also_read=5: must be text"),
        (
            {"data": (torch.randn(400, 6), torch.zeros(400)), "loss": lambda out, y: out.sum(1)},
            r"averages='OPA\(k=3\)': averages the probabilities of classes, and this run has none",
        ),
        (
            {"loss": F.mse_loss, "model": nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))},
            "and this run has none: classes need integer labels, a loss such as cross_entropy",
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


def test_one_sentence_about_what_was_read_is_one_item(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run", also_read="the range of ages")
    assert own.statement.also_read == ("the range of ages",)


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
    words = "The clip also read 30 records given as public, which ε does not protect"
    assert words in statement["items"]["data accesses"]
    with pytest.raises(ConfigurationError, match="public_records=40: differs from the value"):
        made(pairs(40, seed=2)).resume()
    assert made(pairs(30, seed=2)).resume().steps == STEPS
