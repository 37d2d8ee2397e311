"""Scores of models: on data that were given for it, refused where they cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset
from training_cases import pairs, trainer

from steppe.averaging import OPA
from steppe.errors import ConfigurationError, DataError
from steppe.training import OutputAverage


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
        (lambda model: {"model": 1.0}, "evaluate='model': is reserved in the table"),
        (lambda model: {"epsilon": 1.0}, "evaluate='epsilon': is reserved in the table"),
    ],
)
def test_an_evaluation_that_fails_does_so_before_anything_is_spent(
    tmp_path: Path, evaluate: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path / "run", averages=(), evaluate=evaluate)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_evaluated_on_is_called_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="evaluate=int: must return any record by its index"):
        trainer(tmp_path / "run", evaluate=5)


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
    with pytest.raises(ConfigurationError, match="needs models of one input, but a record here"):
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
    with pytest.raises(ConfigurationError, match="are the private records, but scores on them"):
        trainer(tmp_path / "run", data=data, evaluate=evaluate)
    together = pairs(500)
    train, test = tuple(t[:400] for t in together), tuple(t[400:] for t in together)
    trainer(tmp_path / "run", data=train, evaluate=test)
    ours, theirs = torch.utils.data.random_split(TensorDataset(*together), [400, 100])
    trainer(tmp_path / "run", data=ours, evaluate=theirs)
