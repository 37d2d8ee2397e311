"""Schedulers of torch in a run: gone through once before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_cases import STEPS, pairs, trainer

from steppe.errors import ConfigurationError
from steppe.training.groups import PrivateData
from steppe.training.lr_schedule import LRSchedule


def linear_and_rate() -> tuple[nn.Module, torch.optim.SGD]:
    model = nn.Linear(6, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def test_a_plateau_needs_public_data(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
    own = {"model": model, "optimizer": optimizer, "scheduler": plateau, "averages": ()}
    with pytest.raises(ConfigurationError, match="must not come from the private data"):
        trainer(tmp_path / "run", **own, evaluate=None)
    with pytest.raises(ConfigurationError, match="private records that holdout keeps out"):
        LRSchedule(plateau, optimizer, evaluated=True, held_out=True)
    private = PrivateData(records=pairs(400), held_out=0.2)
    with pytest.raises(ConfigurationError, match="would depend on them without noise"):
        trainer(tmp_path / "run", **own, data=private)
    trainer(tmp_path / "run", **own, evaluate_every=2).fit()
    assert optimizer.param_groups[0]["lr"] < 0.5


def test_a_schedule_that_fails_does_so_before_anything_is_spent(tmp_path: Path) -> None:
    model, optimizer = linear_and_rate()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=0)
    own = {"model": model, "optimizer": optimizer, "averages": ()}
    with pytest.raises(
        ConfigurationError,
        match=r"scheduler='StepLR': fails within the 24 steps of the plan: ZeroDivisionError",
    ):
        trainer(tmp_path / "run", **own, scheduler=scheduler)
    too_short = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=STEPS - 5)
    with pytest.raises(ConfigurationError, match="scheduler='OneCycleLR': fails within"):
        trainer(tmp_path / "run", **own, scheduler=too_short)


@pytest.mark.parametrize(
    "made",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=99),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, step_size_up=3),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.ConstantLR(optimizer),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            milestones=[4],
        ),
    ],
    ids=["one cycle", "cyclic", "lambda", "sequential"],
)
def test_a_rehearsed_schedule_is_as_good_as_new(made: Any) -> None:
    rates = []
    for rehearsed in (False, True):
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        schedule = LRSchedule(made(optimizer), optimizer, evaluated=False)
        if rehearsed:
            schedule.rehearse(20)
        (group,) = optimizer.param_groups
        seen = []
        for _ in range(20):
            seen.append((group["lr"], group["momentum"]))
            schedule.step()
        rates.append(seen)
    assert rates[0] == rates[1]


def test_a_scheduler_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    model, optimizer = linear_and_rate()
    stranger = torch.optim.lr_scheduler.LinearLR(torch.optim.SGD(model.parameters(), lr=0.5))
    with pytest.raises(ConfigurationError, match="'LinearLR': belongs to another optimizer"):
        trainer(tmp_path / "run", model=model, optimizer=optimizer, scheduler=stranger)


def test_a_plateau_needs_a_loss_by_that_name(tmp_path: Path) -> None:
    model, optimizer = linear_and_rate()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    own = {"model": model, "optimizer": optimizer, "scheduler": plateau, "averages": ()}
    with pytest.raises(ConfigurationError, match="follows a loss, and evaluate= gives size"):
        trainer(tmp_path / "run", **own, evaluate=lambda model: {"size": 3})
