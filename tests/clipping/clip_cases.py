"""Every clip, and a small network whose records they are tried on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import GEP, Automatic, Clip, ClippedSum, Flat, PerLayer, Quantile
from steppe.clipping.reference import record_gradients

CLIPS: dict[str, Clip] = {
    "Flat": Flat(0.4),
    "Quantile": Quantile(start=0.4, count_share=0.1),
    "AUTO-S": Automatic(0.4, gamma=0.1),
    "AUTO-V": Automatic(0.4, gamma=0.0),
    "PerLayer equal": PerLayer(0.4),
    "PerLayer size": PerLayer(0.4, "size"),
    "PerLayer shares": PerLayer(0.4, {"2": 0.2, "": 0.8}),
    "GEP": GEP(6, 2, embedding_bound=0.3, residual_bound=0.1),
    "biased GEP": GEP(6, 2, embedding_bound=0.3, biased=True),
}
every_clip = pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
DECAYS: list[Any] = [0.0, 0.3, {"0": 0.5, "2.bias": 0.1}]


class Case:
    """A small network with private and public records."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        self.model = layers.to(dtype)
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        self.batch = (torch.randn(12, 5, dtype=dtype) * 2, torch.randint(3, (12,)))
        self.public = (torch.randn(10, 5, dtype=dtype), torch.randint(3, (10,)))

    def objective(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1], reduction="none")

    def engine(self, clip: Clip, **options: Any) -> ClippedSum:
        public = self.public if isinstance(clip, GEP) else None
        return ClippedSum(self.parameters, self.objective, clip, public=public, **options)

    def gradients(self, batch: Any, l2: Any) -> Tensor:
        found = record_gradients(self.objective, list(self.parameters.values()), batch)
        chosen = l2 if isinstance(l2, dict) else {"": l2}
        pulls = []
        for name, weight in self.parameters.items():
            fitting = [p for p in chosen if not p or f"{name}.".startswith(f"{p}.")]
            strength = chosen[max(fitting, key=len)] if fitting else 0.0
            pulls.append(strength * weight.detach().flatten())
        return found + torch.cat(pulls)
