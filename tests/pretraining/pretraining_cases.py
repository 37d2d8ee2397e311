"""Small public data and models for the tests of pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe.pretraining import PretrainingOutcome, PublicData, pretrain


def public(records: int = 96) -> PublicData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records + 40, 5, generator=generator)
    y = (x[:, 0] > 0).long()
    return PublicData(x[:records], y[:records], "half-planes", x[records:], y[records:], 2)


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    )


def trained(run: Path, method: Any = None, **changes: Any) -> tuple[nn.Module, PretrainingOutcome]:
    """A network after a few steps."""
    model = changes.pop("model", None) or network()
    options = {"batch_size": 16, "steps": 12, "checkpoint_every": 100, "progress": False, **changes}
    outcome = pretrain(model, options.pop("data", public()), method, run=run, **options)
    return model, outcome


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
