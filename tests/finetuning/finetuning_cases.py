"""A network with everything that fine-tuning treats in a special way, and a start of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import steppe
from steppe.finetuning import FrozenBatchNorm
from steppe.starts import Card, PublicRecords, write_start


def network(classes: int = 3, width: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.GroupNorm(2, width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, 8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )


def started(path: Path, classes: int = 3) -> tuple[nn.Sequential, Path]:
    """A network whose statistics have seen data, and its start."""
    torch.manual_seed(0)
    model = network(classes)
    with torch.no_grad():
        for _ in range(20):
            model(torch.rand(16, 1, 8, 8) * 3)
    card = Card(PublicRecords("shapes", 320), {"kind": "DPAdapter"}, model={"class": "network"})
    return model.eval(), write_start(path / "start.safetensors", model.state_dict(), card)


def records(count: int = 80, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, 1, 8, 8, generator=generator)
    return x, torch.randint(classes, (count,), generator=generator)


def privately(model: nn.Module, data: Any = None, optimizer: Any = None, **plan: Any) -> Any:
    """A private object over the trained weights of a model."""
    own = {"noise_multiplier": 1.0, "delta": 1e-3, "population": 80, "batch_size": 16, "steps": 3}
    if optimizer is None:
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1)
    return steppe.make_private(
        model,
        optimizer,
        records() if data is None else data,
        steppe.Plan(**{**own, **plan}),
        loss=F.cross_entropy,
    )


def statistics(model: nn.Module) -> list[torch.Tensor]:
    return [
        module.running_mean.clone()
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d | FrozenBatchNorm) and module.running_mean is not None
    ]
