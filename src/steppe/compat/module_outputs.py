"""Whose the outputs of a module are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe._global_seeds import global_seeds_kept
from steppe.clipping.batches import each
from steppe.clipping.tracing import mark
from steppe.compat.loop_watch import LoopWatch
from steppe.compat.nests import objects_in
from steppe.compat.totals import LEAF
from steppe.isolation import refusals
from steppe.isolation.owners import on_axis
from steppe.isolation.proof import _attributes_kept
from steppe.isolation.trace import _Follower, _plain_operations, _quiet
from steppe.isolation.watch import NotIsolated
from steppe.isolation.where import Layers


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
    follower = _Follower(records, watch, layers)
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
        global_seeds_kept(),
        _attributes_kept(module),
        layers.followed(),
        _plain_operations(),
        warnings.catch_warnings(),
        _quiet(),
        watch,
        follower,
    ):
        warnings.simplefilter("ignore")
        try:
            made = module(*args, **kwargs)
        except NotIsolated as stop:
            raise refusals.stopped(stop.finding) from None
    return list(objects_in(made))
