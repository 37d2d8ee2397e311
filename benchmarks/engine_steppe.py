"""Steppe behind the benchmark's interface: the shipped step, with secure noise as users get it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import settings
from benchmarks.cases import Case, record_losses
from steppe import Flat, Gaussian, Plan, SecureSource
from steppe.clipping import ClippedSum, Kernels, objective_of, probe
from steppe.clipping.physical import fitting_physical_batch
from steppe.step import PrivateStep

Pinned = Mapping[str, str] | None


@dataclass(frozen=True)
class Engine:
    """A step on one batch, and the ways that its layers take."""

    step: PrivateStep
    batch: tuple[Tensor, Tensor]

    def __call__(self) -> None:
        self.step.take([self.batch])

    @property
    def kernels(self) -> dict[str, str]:
        """As `Kernels(pinned=…)` takes them."""
        return self.step.engine.kernels.chosen


def default(case: Case, batch: tuple[Tensor, Tensor], pinned: Pinned = None) -> Engine:
    """The physical batch that the engine chooses, which is what users get."""
    return _setup(case, batch, fitting_physical_batch, pinned)


@functools.cache
def chosen(case: Case) -> int:
    """How many records the engine takes at once where nobody says."""
    model = case.new_model()
    parameters = dict(model.named_parameters())
    found = probe(model, parameters, objective_of(model, record_losses), case.new_batch(1))
    return min(case.batch, fitting_physical_batch(found.bytes_per_record, _size(parameters)))


def whole(case: Case, batch: tuple[Tensor, Tensor], pinned: Pinned = None) -> Engine:
    """The whole batch at once, or in the same pieces as the peers where the case has pieces."""
    return _setup(case, batch, lambda *_: case.physical, pinned)


def micro(case: Case, batch: tuple[Tensor, Tensor], pinned: Pinned = None) -> Engine:
    """Micro-batches, which bound memory."""
    return _setup(case, batch, lambda *_: case.micro, pinned)


def noise() -> Gaussian:
    """The noise that users get by default; a test puts none in its place."""
    return Gaussian()


def _size(parameters: Mapping[str, Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters.values())


def _setup(
    case: Case,
    batch: tuple[Tensor, Tensor],
    physical_batch: Callable[[int, int], int | None],
    pinned: Pinned,
) -> Engine:
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
    found = probe(model, parameters, objective, batch)
    engine = ClippedSum(
        parameters,
        objective,
        plan.clip,
        physical_batch=physical_batch(found.bytes_per_record, _size(parameters)),
        layouts=found.layouts,
        kernels=Kernels(pinned),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    return Engine(PrivateStep(plan, engine, optimizer, SecureSource()), batch)
