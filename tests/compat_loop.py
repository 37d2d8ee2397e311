"""What the tests of the compatibility layer share: small models, one loop, the slow truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from steppe.compat import PrivacyEngine

QUIET = 1e-7  # a noise multiplier so small that gradients can be compared


def small_cnn() -> nn.Module:
    """The shape of the MNIST example, for 8×8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(4, 6, 2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def images(records: int, classes: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(records)
    return TensorDataset(
        torch.randn(records, 1, 8, 8, generator=generator),
        torch.randint(0, classes, (records,), generator=generator),
    )


def vectors(records: int, width: int = 5) -> TensorDataset:
    generator = torch.Generator().manual_seed(records)
    return TensorDataset(
        torch.randn(records, width, generator=generator),
        torch.randint(0, 2, (records,), generator=generator),
    )


@dataclass
class Loop:
    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss

    def batch(self) -> tuple[Tensor, Tensor]:
        """One drawn batch; the pass is left after it."""
        return next(iter(self.loader))

    def run(self, batches: int = 1) -> None:
        """So many private steps, in as many passes as that takes."""
        for _, (x, y) in zip(range(batches), self._endless(), strict=False):
            self.optimizer.zero_grad()
            self.backward(x, y)
            self.optimizer.step()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader


def start(
    model: nn.Module | None = None,
    data: TensorDataset | None = None,
    batch_size: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    accountant: str = "prv",
    sigma: float = QUIET,
    clip: float = 0.5,
    **options: Any,
) -> Loop:
    """A private loop; without a batch size every record takes part in every step."""
    model = nn.Linear(5, 2) if model is None else model
    data = vectors(12) if data is None else data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    engine = PrivacyEngine(accountant=accountant)
    loader: Any = DataLoader(data, batch_size=batch_size or len(data))
    model, optimizer, *_, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=clip,
        **options,
    )
    return Loop(engine, model, optimizer, loader)


def clipped_mean(
    model: nn.Module,
    records: list[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    clip: float,
    divisor: float,
) -> list[Tensor]:
    """Σᵢ clip(gᵢ) / divisor, one backward pass a record, in float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    for record in records:
        gradients = torch.autograd.grad(loss(model, record), parameters, allow_unused=True)
        filled = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(gradients, parameters, strict=True)
        ]
        norm = torch.cat([g.double().flatten() for g in filled]).norm()
        for place, g in enumerate(filled):
            total[place] += g.double() * (clip / max(clip, float(norm)))
    return [t / divisor for t in total]


def classification_truth(
    model: nn.Module, data: TensorDataset, clip: float, divisor: float | None = None
) -> list[Tensor]:
    """The truth for a batch of all records under cross-entropy."""
    x, y = data.tensors
    records = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    return clipped_mean(
        model,
        records,
        lambda m, record: F.cross_entropy(m(record[0]), record[1]),
        clip,
        divisor or len(x),
    )


def assert_gradients(model: nn.Module, truth: list[Tensor], tolerance: float = 1e-5) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, wanted in zip(trained, truth, strict=True):
        torch.testing.assert_close(p.grad.double(), wanted, rtol=tolerance, atol=tolerance)
