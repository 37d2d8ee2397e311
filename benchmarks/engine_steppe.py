"""Steppe behind the benchmark's interface, with secure noise as users get it by default."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import settings
from benchmarks.cases import Case, record_losses
from benchmarks.settings import CLIP, LEARNING_RATE


def whole(case: Case, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """The engine as it comes: it chooses its own physical batch."""
    return _setup(case, batch, None)


def micro(case: Case, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """The engine in micro-batches, which bound memory."""
    return _setup(case, batch, case.micro)


def _setup(
    case: Case, batch: tuple[Tensor, Tensor], physical_batch: int | None
) -> Callable[[], None]:
    # Imported late so that the peers can be measured where the engine cannot be built.
    from steppe.clipping import ClippedSum, Flat
    from steppe.noise import SecureSource

    model = case.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    clip = Flat(CLIP)
    engine = ClippedSum(model, loss=record_losses, clip=clip, physical_batch=physical_batch)
    source = SecureSource()
    inputs, target = batch

    parameters = list(model.parameters())
    total = torch.empty(sum(parameter.numel() for parameter in parameters))
    views = total.split([parameter.numel() for parameter in parameters])
    gradients = [v.view_as(p) for v, p in zip(views, parameters, strict=True)]

    def step() -> None:
        # The sum starts as the noise: no zeroing and no second pass over the parameters.
        source.fill_normal_(total, settings.NOISE_MULTIPLIER * clip.sensitivity)
        engine.add_(total, inputs, target)
        total.div_(len(target))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return step
