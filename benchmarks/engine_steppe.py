"""Steppe behind the benchmark's interface: the shipped step, with secure noise as users get it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks import settings
from benchmarks.cases import Case
from steppe import Flat, Gaussian, Plan, SecureSource
from steppe.clipping import ClippedSum, fitting_physical_batch
from steppe.gradients import Kernels, objective_of
from steppe.gradients.contact import ContactLayout
from steppe.probing import probe
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
    weights = _size(dict(case.new_model().named_parameters()))
    return min(case.batch, fitting_physical_batch(probed(case).bytes_per_record, weights))


def whole(case: Case, batch: tuple[Tensor, Tensor], pinned: Pinned = None) -> Engine:
    """The whole batch at once, or in the same pieces as the peers where the case has pieces."""
    return _setup(case, batch, lambda *_: case.physical, pinned)


def micro(case: Case, batch: tuple[Tensor, Tensor], pinned: Pinned = None) -> Engine:
    """Micro-batches, which bound memory."""
    return _setup(case, batch, lambda *_: case.micro, pinned)


def noise() -> Gaussian:
    """The noise that users get by default; a test puts none in its place."""
    return Gaussian()


@dataclass(frozen=True)
class Found:
    """What the probe says of a model, for all copies of it, in other processes too.

    Args:
        bytes_per_record: as the probe reports it.
        layouts: where it found the records; weights by their place among the model's.
    """

    bytes_per_record: int
    layouts: tuple[ContactLayout, ...]

    def of(self, parameters: Mapping[str, Tensor]) -> list[ContactLayout]:
        """The layouts for a copy of the model with these weights."""
        return _renamed(self.layouts, [id(weight) for weight in parameters.values()])


_known: dict[str, Found] = {}


def probed(case: Case) -> Found:
    """What the probe says of a case's model; it looks once, whatever the size of the batch."""
    if case.model not in _known:
        model = case.new_model()
        parameters = dict(model.named_parameters())
        report = probe(model, parameters, objective_of(model, case.losses), case.new_batch(1))
        places = {id(weight): place for place, weight in enumerate(parameters.values())}
        _known[case.model] = Found(report.bytes_per_record, tuple(_renamed(report.layouts, places)))
    return _known[case.model]


def remember(case: Case, found: Found) -> None:
    """Take over what the probe said in another process."""
    _known[case.model] = found


def _renamed(
    layouts: Iterable[ContactLayout], names: Mapping[int, int] | Sequence[int]
) -> list[ContactLayout]:
    def own(weight: int | None) -> int | None:
        return None if weight is None else names[weight]

    return [
        replace(each, weights=each.weights and tuple(map(own, each.weights))) for each in layouts
    ]


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
    objective = objective_of(model, case.losses)
    size, found = len(batch[1]), probed(case)
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
        physical_batch=physical_batch(found.bytes_per_record, _size(parameters)),
        layouts=found.of(parameters),
        kernels=Kernels(pinned),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    return Engine(PrivateStep(plan, engine, optimizer, SecureSource()), batch)
