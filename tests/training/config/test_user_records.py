"""Data of a user's own code, from a configuration: read as they are, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from steppe.errors import ConfigurationError, DataError, SteppeError
from steppe.records import share_records
from steppe.training import Config
from steppe.training.config.user_records import own_records

MADE = """
import torch

class Rows:
    def __init__(self, n, form=None, fails=()):
        generator = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, 4, generator=generator)
        self.n, self.form, self.fails = n, form, fails

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        if isinstance(row, slice):  # two records in place of as many as were asked for
            return self[0], self[1]
        if row in self.fails:
            raise ValueError(f"cannot read the picture of patient {row}")
        x, y = self.x[row], int(self.x[row, 0] > 0)
        forms = {"list": (x.tolist(), y), "dict": {"x": x, "y": y}, "number": (float(x[0]), y)}
        return forms.get(self.form, (x, y))

class Alone(Rows):
    def __getitem__(self, row):
        return self.x[row]

class Endless(Rows):
    def __len__(self):
        raise ZeroDivisionError

def plain(): return Rows(300), Rows(60)
def lists(): return Rows(300, "list")
def dicts(): return Rows(300, "dict")
def numbers(): return Rows(300, "number")
def alone(): return Alone(300)
def nothing(): return Rows(0)
def no_test(): return Rows(300), Rows(0)
def broken(): return Rows(300, fails=range(300))
def once(): return Rows(300, fails=(17,)), Rows(60)
def test_broken(): return Rows(300), Rows(60, fails=(3,))
def endless(): return Rows(300), Endless(3)
"""
PLAN = {
    "noise_multiplier": 1.0,
    "delta": 1e-4,
    "population": 300,
    "batch_size": 30,
    "steps": 5,
    "clip": {"name": "Flat", "bound": 0.5},
    "point": "Here",
}


@pytest.fixture(autouse=True)
def _made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows_of_my_own.py").write_text(MADE)
    monkeypatch.syspath_prepend(str(tmp_path))


def config(factory: str, plan: dict[str, Any] | None = None, **data: Any) -> Config:
    return Config(
        {
            "data": {"place": f"rows_of_my_own:{factory}", "classes": 2, **data},
            "plan": {**PLAN, **(plan or {})},
            "optimizer": {"name": "SGD", "lr": 0.1},
            "averages": {},
            "train": {"progress": False},
        }
    )


def test_records_of_ones_own_train(tmp_path: Path) -> None:
    assert config("plain").trainer(tmp_path / "run").fit().steps == 5


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("lists", r"data='list as input': must be pairs of a tensor and a label"),
        ("dicts", r"data='dict': must be pairs of a tensor and a label"),
        ("numbers", r"data='number as input': must be pairs of a tensor and a label"),
        ("alone", r"data='Tensor': must be pairs of a tensor and a label"),
        ("nothing", r"data=no records: must not be empty"),
        ("broken", r"place='rows_of_my_own:broken': raised ValueError when records were read"),
        ("endless", r"place='rows_of_my_own:endless': raised ZeroDivisionError when"),
    ],
)
def test_what_cannot_be_read_is_said_in_words(factory: str, message: str) -> None:
    with pytest.raises(SteppeError, match=message) as caught:
        config(factory).assemble()
    assert "patient" not in str(caught.value)


def test_a_record_that_fails_later_is_said_in_words_too(tmp_path: Path) -> None:
    message = "place='rows_of_my_own:once': raised ValueError when records were read"
    with pytest.raises(DataError, match=message) as caught:  # the labels are looked at
        config("once").trainer(tmp_path / "run")
    assert "17" not in str(caught.value)
    rows = config("once").assemble().data
    with pytest.raises(DataError, match=message):
        list(rows.stream([torch.tensor([4]), torch.tensor([17])]))
    with pytest.raises(DataError, match="rows_of_my_own:test_broken"):
        config("test_broken").assemble().options["evaluate"].batch(torch.arange(10))
    with pytest.raises(DataError, match="rows_of_my_own:test_broken"):
        config("test_broken", public=10).assemble()


def test_a_test_part_without_records_is_none() -> None:
    assert config("no_test").assemble().loaded.evaluate is None
    with pytest.raises(ConfigurationError, match=r"data\.public=1: must leave records of the test"):
        config("no_test", public=1).assemble()


def test_public_records_come_from_the_front_of_the_test_part(tmp_path: Path) -> None:
    gep = {"clip": {"name": "GEP", "bases": 3, "groups": 1}}
    made = config("plain", gep, public=10)
    loaded = made.assemble().loaded
    inputs, labels = loaded.public
    test = loaded.evaluate.given.dataset
    assert torch.equal(inputs, test.x[:10])
    assert len(labels) == 10
    assert torch.equal(loaded.evaluate.batch(torch.arange(50))[0], test.x[10:])
    trainer = made.trainer(tmp_path / "run")
    assert trainer.statement.public_records == trainer.parts.fingerprint["public_records"] == 10
    assert trainer.fit().steps == 5


def test_groups_by_label() -> None:
    assembly = config("plain", groups="parity").assemble()
    even, odd = assembly.loaded.groups
    first = assembly.loaded.train.given.x[:, 0]
    assert torch.equal(even, (first <= 0).nonzero().flatten())
    assert torch.equal(odd, (first > 0).nonzero().flatten())
    with pytest.raises(DataError, match="must end in one tensor of labels if classes"):
        config("alone", groups="parity").assemble()


def test_what_is_known_of_the_records_is_kept() -> None:
    class Said:
        also_read = ("the mean was read",)

        def __len__(self) -> int:
            return 6

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return torch.zeros(2), 0

    said = Said()
    rows = own_records("mine:make", said)
    assert rows.also_read == ("the mean was read",)
    assert share_records(rows, Subset(said, [3]))  # type: ignore[arg-type]
