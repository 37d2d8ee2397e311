"""Checks that passes do not change a model, and restores it after a trial pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import IsolationError
from steppe.gradients.marks import is_marked, unmark
from steppe.randomness import seed_global_generators
from steppe.utils.batches import each, version


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Refuse writes to weights, and to buffers from records; put every value back."""
    weights = {name: (p, version(p), p.detach().clone()) for name, p in model.named_parameters()}
    buffers = {name: (b, b.clone()) for name, b in model.named_buffers()}
    try:
        yield
    finally:
        written = [*_put_weights_back(model, weights), *_put_buffers_back(model, buffers)]
    if written:
        raise IsolationError(
            f"weights or buffers={written[:3]}: must not be written in a forward pass, because "
            "they would carry records' values out without noise; take the write out (max_norm, "
            "running statistics), put the layer in eval mode, or use steppe.fix(model)."
        )


def _changed(tensor: Tensor, before: int, value: Tensor) -> bool:
    """Whether a tensor was written; `.data` hides writes from the version."""
    return version(tensor) != before or not same(tensor.detach(), value)


def _moved(now: Tensor, then: Tensor, before: int, value: Tensor) -> bool:
    """Whether a pass changed a buffer. A write that leaves the value as it is counts too: it may
    move it once the weights have moved."""
    return not same(now, value) or _changed(then, before, value)


def differs(before: Tensor, after: Tensor) -> Tensor:
    """Where two tensors of one shape differ; NaN equals itself."""
    return (before != after) & ~(before.isnan() & after.isnan())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape and nowhere differ."""
    if a.shape != b.shape:
        return False
    # The first question is answered in one pass over weights that nobody wrote.
    return (a.dtype == b.dtype and torch.equal(a, b)) or not bool(differs(a, b).any())


@torch.no_grad()
def _put_weights_back(
    model: nn.Module, weights: Mapping[str, tuple[nn.Parameter, int, Tensor]]
) -> list[str]:
    """The names of those that were written, in place or by another tensor."""
    now = dict(model.named_parameters())
    written = [name for name in now if name not in weights]
    for name, (parameter, before, value) in weights.items():
        unmark(parameter)
        changed = _changed(parameter, before, value)
        if changed:
            if parameter.shape != value.shape:
                parameter.data = value
            parameter.copy_(value)
        if changed or now.get(name) is not parameter:
            path, _, last = name.rpartition(".")
            model.get_submodule(path)._parameters[last] = parameter
            written.append(name)
    return written


@torch.no_grad()
def _put_buffers_back(model: nn.Module, buffers: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """The names of those that were written from records."""
    written = [name for name, buffer in model.named_buffers() if is_marked(buffer)]
    for name, _ in list(model.named_buffers()):
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        if name in buffers:
            original, value = buffers[name]
            unmark(original)
            owner._buffers[last] = original.copy_(value)
        else:  # made in this forward pass
            del owner._buffers[last]
    return written


def require_steady(
    model: nn.Module, objective: Callable[[Any], Tensor], batch: Any, seed: int
) -> None:
    """A second pass must leave the buffers as the first did.

    How many passes a step takes depends on how many records were drawn, and buffers are published
    without noise: one that counts passes, or changes with each, reveals that number.
    """
    seed_global_generators(seed)
    with unchanged(model), torch.enable_grad():
        objective(each(torch.clone, batch))
        first = {n: (b, version(b), b.clone()) for n, b in model.named_buffers()}
        objective(each(torch.clone, batch))
        moved = [n for n, b in model.named_buffers() if n not in first or _moved(b, *first[n])]
    if moved:
        raise IsolationError(
            f"buffers={moved[:3]}: must not change with every forward pass, because the number of "
            "passes depends on how many records were drawn; put these layers in eval mode, or "
            "write the buffer outside of the forward pass."
        )
