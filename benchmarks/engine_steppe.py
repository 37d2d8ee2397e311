"""Steppe behind the benchmark's interface: the shipped step, with secure noise as users get it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import settings
from benchmarks.cases import Case, record_losses
from steppe import Flat, Gaussian, Plan, SecureSource
from steppe.clipping import ClippedSum, objective_of, probe
from steppe.step import PrivateStep


def whole(case: Case, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """The whole batch at once, or in the same pieces as the peers where the case has pieces."""
    return _setup(case, batch, case.physical)


def micro(case: Case, batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """Micro-batches, which bound memory."""
    return _setup(case, batch, case.micro)


def noise() -> Gaussian:
    """The noise that users get by default; a test puts none in its place."""
    return Gaussian()


def _setup(
    case: Case, batch: tuple[Tensor, Tensor], physical_batch: int | None
) -> Callable[[], None]:
    model = case.new_model()
    parameters = dict(model.named_parameters())
    objective = objective_of(model, record_losses)
    size = len(batch[1])
    plan = Plan(
        noise_multiplier=settings.NOISE_MULTIPLIER,
        noise=noise(),
        delta=1e-9,
        population=1000 * size,
        batch_size=size,
        steps=1_000_000,
        clip=Flat(settings.CLIP),
    )
    engine = ClippedSum(
        parameters,
        objective,
        plan.clip,
        physical_batch=physical_batch,
        layouts=probe(model, parameters, objective, batch).layouts,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    step = PrivateStep(plan, engine, optimizer, SecureSource())
    return lambda: step.take([batch])
