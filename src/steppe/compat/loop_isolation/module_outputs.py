"""Whose the outputs of a module are, and what lies in a nest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe.compat.loop_isolation.totals import LEAF, Path
from steppe.compat.loop_isolation.watch import LoopWatch
from steppe.gradients import mark
from steppe.isolation import (
    Follower,
    Layers,
    NotIsolated,
    attributes_kept,
    on_axis,
    plain_operations,
    quiet,
    refusals,
)
from steppe.randomness import global_generators_kept
from steppe.utils.batches import each


def outputs_of_module(
    module: nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    known: Sequence[Tensor],
    axis_of: Callable[[Tensor], int],
    records: int,
) -> list[Tensor]:
    """Whose the outputs of a module are: stand-ins without numbers that know it.

    Args:
        module: runs on fake tensors.
        arguments: with which the loop called it.
        known: the arguments' tensors as the loop had them, in order.
        axis_of: the axis of the records in an argument.
        records: how many there are.
    """
    layers = Layers(module)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    watch = LoopWatch(records, fake, lambda: layers.now)
    follower = Follower(records, watch, layers)
    waiting = iter(known)

    def stand_in(tensor: Tensor) -> Tensor:
        one = next(waiting)
        with fake:
            made = torch.empty_strided(
                tensor.size(),
                tensor.stride(),
                dtype=tensor.dtype,
                device=tensor.device,
                requires_grad=tensor.requires_grad,
            )
        watch.adopt(made, on_axis(tensor.ndim, axis_of(tensor), records))
        if hasattr(one, LEAF):
            setattr(made, LEAF, getattr(one, LEAF))
        return made

    args, kwargs = each(stand_in, arguments)
    mark((args, kwargs), follower.number)
    with (
        global_generators_kept(),
        attributes_kept(module.modules()),
        layers.followed(),
        plain_operations(),
        warnings.catch_warnings(),
        quiet(),
        watch,
        follower,
    ):
        warnings.simplefilter("ignore")
        try:
            made = module(*args, **kwargs)
        except NotIsolated as stop:
            raise refusals.stopped(stop.finding) from None
    return list(objects_in(made))


def leaves(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors of a batch, with the way to each."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, (*path, key))
    elif isinstance(batch, (tuple, list)):
        for place, value in enumerate(batch):
            yield from leaves(value, (*path, place))


def objects_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """All tensors of a nest, those that are attributes of plain objects included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from objects_in(item, (*inside, id(value)))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from objects_in(item, (*inside, id(value)))
    elif (hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module))) and id(
        value
    ) not in inside:
        for item in vars(value).values():
            yield from objects_in(item, (*inside, id(value)))


def numbers_in(nest: Any) -> Iterator[float]:
    """All Python numbers of a nest."""
    if isinstance(nest, (int, float)) and not isinstance(nest, bool):
        yield float(nest)
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from numbers_in(item)
    elif isinstance(nest, Mapping):
        yield from numbers_in(list(nest.values()))
