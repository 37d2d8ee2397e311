"""A run that takes a fraction of a second, for all tests of this room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe import Plan
from steppe.averaging import EMA, OMV, OPA, SWA
from steppe.training import OutputAverage, Trainer
from steppe.training.arguments import into_groups

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
