"""The score of the published model beside a constant answer and beside training without privacy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_cases import pairs, trainer

from steppe.errors import ConfigurationError
from steppe.training import comparison
from steppe.training.comparison import compared
from steppe.training.evaluation import Evaluation


class Constant(nn.Module):
    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.answer.expand(len(x), *self.answer.shape)


def test_an_accuracy_stands_beside_the_most_frequent_label() -> None:
    labels = torch.tensor([0] * 70 + [1] * 30)
    evaluation = Evaluation((torch.zeros(100, 2), labels), F.cross_entropy, None)
    found = compared(evaluation, Constant(torch.tensor([0.0, 1.0])))
    assert found is not None
    assert (found.records, found.score, found.value, found.baseline) == (100, "accuracy", 0.3, 0.7)
    assert (round(found.low, 3), round(found.high, 3)) == (0.219, 0.396)


def test_a_loss_stands_beside_that_of_the_mean() -> None:
    targets = torch.tensor([1.0, 2.0, 3.0, 6.0])
    evaluation = Evaluation((torch.zeros(4, 2), targets), F.mse_loss, None)
    found = compared(evaluation, Constant(torch.tensor(2.0)))
    assert found is not None
    assert (found.score, found.value, found.baseline) == ("loss", 4.5, 3.5)
    assert found.low == 0.0
    assert found.high == pytest.approx(4.5 + 1.959964 * 7.6811 / 2, rel=1e-3)


def test_what_has_no_constant_answer_is_not_compared(tmp_path: Path) -> None:
    assert compared(Evaluation(lambda model: {"f1": 0.5}, None, None), nn.Linear(2, 2)) is None
    odds = (torch.zeros(4, 2), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    evaluation = Evaluation(odds, F.binary_cross_entropy_with_logits, None)
    assert compared(evaluation, Constant(torch.tensor(0.0))) is None  # the mean is no logit
    outcome = trainer(tmp_path / "run", evaluate=None).fit()
    assert outcome.comparison is None


def test_the_ceiling_must_be_stated_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_STEPS", 500)
    plain = trainer(tmp_path / "plain")
    with pytest.raises(ConfigurationError, match=r"ceiling=False: is not in the privacy statement"):
        plain.ceiling()
    asked = trainer(tmp_path / "asked", ceiling=True)
    assert asked.statement.compared
    initial = {name: weight.clone() for name, weight in asked.model.state_dict().items()}
    assert asked.ceiling()["accuracy"] > 0.8  # on a copy with the initial weights
    for name, weight in asked.model.state_dict().items():
        torch.testing.assert_close(weight, initial[name])
    asked.fit()
    assert json.loads((tmp_path / "asked" / "statement.json").read_text())["compared"]
    with pytest.raises(ConfigurationError, match=r"ceiling=True: needs held-out records"):
        trainer(tmp_path / "none", ceiling=True, evaluate=None, data=pairs(400))
