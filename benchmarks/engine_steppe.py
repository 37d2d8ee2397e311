"""Steppe behind the benchmark's interface, with secure noise as users get it by default."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import settings
from benchmarks.cases import Case, record_losses


def whole(case: Case, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """The whole batch at once, or in the same pieces as the peers where the case has pieces."""
    return _setup(case, batch, case.physical)


def micro(case: Case, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """Micro-batches, which bound memory."""
    return _setup(case, batch, case.micro)


def _setup(
    case: Case, batch: tuple[Tensor, Tensor], physical_batch: int | None
) -> Callable[[], None]:
    # Imported late so that the peers can be measured where the engine cannot be built.
    from steppe.clipping import ClippedSum, Flat, objective_of, probe
    from steppe.noise import SecureSource

    model = case.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    parameters = dict(model.named_parameters())
    objective = objective_of(model, record_losses)
    clip = Flat(settings.CLIP)
    engine = ClippedSum(
        parameters,
        objective,
        clip,
        physical_batch=physical_batch,
        layouts=probe(model, parameters, objective, batch).layouts,
    )
    source = SecureSource()

    total = torch.empty(engine.numel)
    views = total.split([parameter.numel() for parameter in parameters.values()])
    gradients = [v.view_as(p) for v, p in zip(views, parameters.values(), strict=True)]

    def step() -> None:
        # The sum starts as the noise: no zeroing and no second pass over the parameters.
        source.fill_normal_(total, settings.NOISE_MULTIPLIER * clip.sensitivity)
        engine.add_(total, batch)
        total.div_(len(batch[1]))
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return step
