"""A run that takes a fraction of a second, for all tests of this room."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from steppe import Plan
from steppe.averaging import EMA, OMV, OPA, SWA
from steppe.ledger import Ledger
from steppe.training import Interrupted, OutputAverage, StepInfo, Trainer
from steppe.training.groups import into_groups

STEPS = 24


def pairs(records: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(records, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def plan(**changes: Any) -> Plan:
    constants: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "delta": 1e-4,
        "population": 400,
        "batch_size": 40,
        "steps": STEPS,
    }
    return Plan(**{**constants, **changes})


def trainer(run: Path, **changes: Any) -> Trainer:
    """A trainer over a fresh model; changes go to the trainer's arguments and their groups."""
    torch.manual_seed(0)
    model = changes.pop("model", None) or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    lr = changes.pop("lr", 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    own: dict[str, Any] = {
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS),
        "run": run,
        "evaluate": pairs(100, seed=1),
        "averages": [
            SWA(model, warmup=10),
            EMA(model, 0.9),
            OutputAverage(OPA, 3),
            OutputAverage(OMV, 3),
        ],
        "store_every": 4,
        "checkpoint_every": 5,
        "block": 4,
        "progress": False,
    }
    data = changes.pop("data", pairs(400))
    used = changes.pop("plan", None) or plan()
    given = into_groups({"data": data, **own, **changes})
    return Trainer(model, given.pop("data"), used, **given)


def raising(error: Exception) -> Any:
    """A function that can only fail."""

    def fail(*_: Any) -> None:
        raise error

    return fail


def stop_at(step: int) -> Any:
    """A callback that presses Ctrl-C in the middle of a step's aftermath."""

    def press(moment: StepInfo) -> None:
        if moment.step == step:
            signal.raise_signal(signal.SIGINT)

    return press


def fail_at(step: int, error: Exception) -> Any:
    def fail(moment: StepInfo) -> None:
        if moment.step == step:
            raise error

    return fail


def broken(run: Path, step: int, **changes: Any) -> None:
    """A run in which a step fails half way."""
    own = trainer(run, **changes)
    steps = iter(range(1, STEPS + 1))

    def fail(*_: Any) -> None:
        if next(steps) == step:
            raise ZeroDivisionError

    own.optimizer.register_step_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        own.fit()


def interrupted(run: Path, step: int, **changes: Any) -> None:
    with pytest.raises(Interrupted):
        trainer(run, callbacks=[stop_at(step)], **changes).fit()


def charged(run: Path) -> int:
    (only,) = Ledger(run / "ledger.jsonl").runs().values()
    return only.charged
