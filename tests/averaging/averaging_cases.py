"""Models and average makers that the averaging tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steppe.averaging import EMA, SWA, Average, PolynomialDecay, Window
from steppe.averaging.profiles import ema_profile, power_profile


def uniform(counted: Sequence[int], steps: int) -> NDArray[np.float64]:
    """The profile that weighs some updates, counted from 1, alike."""
    profile = np.zeros(steps)
    profile[[update - 1 for update in counted]] = 1 / len(counted)
    return profile


@dataclass(frozen=True)
class Row:
    """One average: how it is made, and the weight of each of T updates in it."""

    name: str
    make: Callable[[nn.Module, Path], Average]
    profile: Callable[[int], NDArray[np.float64]]
    tolerance: float = 1e-6


ROWS = [
    Row("swa", lambda m, _: SWA(m), lambda t: uniform(range(1, t + 1), t)),
    Row(
        "swa in cycles",
        lambda m, _: SWA(m, cycle=3, warmup=4),
        lambda t: uniform(range(4, t + 1, 3), t),
    ),
    Row("ema", lambda m, _: EMA(m, decay=0.8), lambda t: ema_profile(0.8, t)),
    Row(
        "ema cold",
        lambda m, _: EMA(m, decay=0.8, warmup=False),
        lambda t: ema_profile(0.8, t, warmup=False),
    ),
    Row("pda", lambda m, _: PolynomialDecay(m, gamma=2.5), lambda t: power_profile(2.5, t)),
    Row("window", lambda m, _: Window(m, k=5), lambda t: uniform(range(t - 4, t + 1), t)),
    Row(
        "window in blocks",
        lambda m, _: Window(m, k=6, block=3),
        # Two whole blocks and what has come since.
        lambda t: uniform(range(t - 5 - t % 3, t + 1), t),
    ),
    Row(
        "window on disk",
        lambda m, path: Window(m, k=5, folder=path),
        lambda t: uniform(range(t - 4, t + 1), t),
    ),
    Row(
        "window on disk, bfloat16",
        lambda m, path: Window(m, k=5, folder=path, dtype=torch.bfloat16),
        lambda t: uniform(range(t - 4, t + 1), t),
        tolerance=2**-8,
    ),
]


class Tied(nn.Module):
    """Tied weights, a frozen parameter, and buffers of floats and of whole numbers."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2, dtype=dtype)
        self.out = nn.Linear(2, 3, dtype=dtype)
        self.out.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=False)
        self.register_buffer("level", torch.zeros(2, dtype=dtype))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embed(words) * self.frozen)


@torch.no_grad()
def walk(model: nn.Module, seed: int = 0) -> None:
    """Move every trained weight and every buffer, reproducibly."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    for buffer in model.buffers():
        buffer.fill_(seed)


def bits(model: nn.Module) -> dict[str, Tensor]:
    """A copy of everything a model holds."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Equal to the last bit, NaN included."""
    return one.keys() == other.keys() and all(
        tensor.numpy(force=True).tobytes() == other[name].numpy(force=True).tobytes()
        if tensor.dtype != torch.bfloat16
        else bool((tensor.view(torch.int16) == other[name].view(torch.int16)).all())
        for name, tensor in one.items()
    )
