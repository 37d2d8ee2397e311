"""The small private run that the tests of this room share."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import steppe

N = 200


def parts(seed: int = 0, **options: Any) -> tuple[nn.Module, Any, Any, steppe.Plan]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = (torch.randn(N, 6), torch.randint(3, (N,)))
    settings = {"delta": 1e-4, "population": N, "batch_size": 20, "steps": 6} | options
    if "epsilon" not in settings:
        settings.setdefault("noise_multiplier", 1.0)
    return model, optimizer, data, steppe.Plan(**settings)


def private(seed: int = 0, loss: Any = F.cross_entropy, **options: Any) -> steppe.Private:
    model, optimizer, data, plan = parts(seed, **options)
    return steppe.make_private(model, optimizer, data, plan, loss=loss)
