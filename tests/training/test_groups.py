"""Groups of the trainer's arguments: a plain value stands for one, names of fields are known."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_cases import pairs, plan

from steppe.errors import ConfigurationError
from steppe.training import Charging, Objective, PrivateData, Saving, Trainer
from steppe.training.groups import grouped, into_groups


def made(run: Path | Saving, data: Any = None, **options: Any) -> Trainer:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given = {"optimizer": optimizer, "progress": False, **options}
    return Trainer(model, pairs(400) if data is None else data, plan(), run=run, **given)


def test_the_trainer_has_at_most_fifteen_parameters() -> None:
    own = [name for name in inspect.signature(Trainer).parameters if name != "unknown"]
    assert len(own) <= 15


def test_a_plain_value_and_its_group_mean_the_same(tmp_path: Path) -> None:
    plain = made(tmp_path / "run", loss=F.cross_entropy, ledger=tmp_path / "l.jsonl")
    in_groups = made(
        Saving(folder=tmp_path / "run"),
        PrivateData(records=pairs(400)),
        loss=Objective(loss=F.cross_entropy),
        ledger=Charging(ledger=tmp_path / "l.jsonl"),
    )
    assert plain.parts.fingerprint == in_groups.parts.fingerprint
    assert plain.parts.config("id") == in_groups.parts.config("id")
    assert plain.folder.path == in_groups.folder.path
    assert plain.parts.ledger.path == in_groups.parts.ledger.path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("classes", r"steppe.training.PrivateData; write data=PrivateData\(records=…, classes=…\)"),
        ("data_name", r"PrivateData; write data=PrivateData\(records=…, name=…\)"),
        ("objective", r"Objective; write loss=Objective\(loss=…, function=…\)"),
        ("publish", r"Saving; write run=Saving\(folder=…, publish=…\)"),
        ("block", r"Charging; write ledger=Charging\(ledger=…, block=…\)"),
    ],
)
def test_an_argument_of_a_group_is_refused_by_its_name(
    tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}=…: is an argument of .*{words}"):
        made(tmp_path / "run", **{name: 2})


def test_an_unknown_argument_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lossy'"):
        made(tmp_path / "run", lossy=2)


def test_groups_cannot_be_changed_and_have_no_positions() -> None:
    saving = Saving(folder="runs/first")
    with pytest.raises(FrozenInstanceError):
        saving.folder = "runs/second"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Saving("runs/first")  # type: ignore[misc]


def test_a_function_takes_the_place_of_the_loss() -> None:
    assert Objective(function=lambda model, batch: batch).loss is None
    assert Objective().loss is F.cross_entropy
    assert grouped("loss", None).loss is None


def test_names_of_fields_are_put_into_their_groups() -> None:
    given = {"data": [1], "data_name": "ann", "store_every": 3, "loss": None, "progress": False}
    assert into_groups(given) == {
        "data": PrivateData(records=[1], name="ann"),
        "run": Saving(store_every=3),
        "loss": None,
        "progress": False,
    }
