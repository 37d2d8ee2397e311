"""Averages of a run's outputs: for whom there are any, and how they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_cases import trainer

from steppe.averaging import OMV, OPA
from steppe.errors import ConfigurationError
from steppe.training import OutputAverage, read_log


def test_outputs_without_classes_are_found_by_the_first_scores(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="averages the probabilities of classes"):
        trainer(
            tmp_path / "run",
            model=nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
            loss=lambda out, y: (out - y).square(),
            averages=[OutputAverage(OPA, 3)],
        )


@pytest.mark.parametrize("kind", [OPA, OMV])
def test_outputs_are_not_averaged_with_an_objective(tmp_path: Path, kind: type) -> None:
    def objective(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with pytest.raises(ConfigurationError, match=r"\(k=3\)': calls the model on inputs alone"):
        trainer(tmp_path / "run", objective=objective, averages=[OutputAverage(kind, 3)])
    assert not (tmp_path / "run").exists()


def test_a_function_that_evaluates_leaves_outputs_unscored_with_a_note(tmp_path: Path) -> None:
    trainer(tmp_path / "run", evaluate=lambda model: {"size": 3}).fit()
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert notes == ["outputs are not averaged: evaluate= is a function and has no targets"]


def test_fewer_checkpoints_than_asked_for_are_counted_in_the_name(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run", callbacks=[lambda moment: moment.step == 8])
    names = [row["model"] for row in own.fit().table]
    assert names[-2:] == ["OPA(k=3) of 2 stored", "OMV(k=3) of 2 stored"]
