"""Whose the outputs of a module are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe.compat.loop_isolation.nests import objects_in
from steppe.compat.loop_isolation.totals import LEAF
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
