"""Whose the outputs of a module are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from steppe.compat.loop_isolation.followed import Followed
from steppe.compat.loop_isolation.nests import objects_in
from steppe.compat.loop_isolation.past import Past
from steppe.compat.loop_isolation.reads import READ
from steppe.compat.loop_isolation.refusals import holds_earlier, holds_read_number
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
from steppe.utils.batches import each, tensors_in


class NothingKept(TorchFunctionMode):
    """Refuses operations in the module on what the loop has kept of earlier batches, such as a
    number that a hook of the user's divides by.

    Args:
        past: knows what is left of those.
    """

    def __init__(self, past: Past) -> None:
        super().__init__()
        self._past = past

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        if any(type(value) in READ for value in given):
            raise holds_read_number("module")
        with torch._C.DisableTorchFunction():  # what we ask tensors is no part of the module
            earlier = any(type(t) is Followed or self._past.holds(t) for t in tensors_in(given))
        if earlier:
            raise holds_earlier("module")
        return func(*args, **kwargs)


def outputs_of_module(
    module: nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    known: Sequence[Tensor],
    axis_of: Callable[[Tensor], int],
    records: int,
    past: Past,
) -> list[Tensor]:
    """Whose the outputs of a module are: stand-ins without numbers that know it.

    Args:
        module: runs on fake tensors.
        arguments: with which the loop called it.
        known: the arguments' tensors as the loop had them, in order.
        axis_of: the axis of the records in an argument.
        records: how many there are.
        past: knows what is left of earlier batches.
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
        NothingKept(past),
    ):
        warnings.simplefilter("ignore")
        try:
            made = module(*args, **kwargs)
        except NotIsolated as stop:
            raise refusals.stopped(stop.finding) from None
    return list(objects_in(made))
