"""What the rules need to know of a call's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.owners import FREE, everywhere, join, joined_over


def aligned(owners: Tensor, axes: int) -> Tensor:
    """With axes of size 1 in front, as broadcasting puts them."""
    if owners.ndim == axes:
        return owners
    return owners.reshape((1,) * (axes - owners.ndim) + tuple(owners.shape))


def of_all(call: Call, tensor: Tensor, axes: int) -> Tensor:
    """The owner of what is made from all elements of a tensor, with so many axes of size 1."""
    return joined_over(call.owners(tensor), range(tensor.ndim)).reshape((1,) * axes)


def with_all_of(call: Call, owners: Tensor, *names: str) -> Tensor:
    """Joined with the owner of all elements of such arguments, where records are in those."""
    given = [call[name] for name in names]
    parts = [of_all(call, one, owners.ndim) for one in given if not call.is_free(one)]
    return join([owners, *parts])


def axes_of(dim: Any, ndim: int) -> list[int]:
    """Axes counted from the front; None or none stand for all."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return list(range(ndim))
    several = dim if isinstance(dim, Sequence) else (dim,)
    return [axis % ndim for axis in several] if ndim else []


def owned_tensors(call: Call) -> list[Tensor]:
    """The arguments that are made from records."""
    return [tensor for tensor in call.tensors() if not call.is_free(tensor)]


def broadcast(call: Call, tensors: Sequence[Tensor], axes: int) -> Tensor:
    """The owners of what is made from tensors that lie over each other."""
    together = [aligned(call.owners(t), axes) for t in tensors if not call.is_free(t)]
    found = join(together) if together else everywhere(axes, FREE)
    for tensor in tensors:
        if call.is_free(tensor):
            call.require_same_for_all(tensor, found)
    return found


def without(owners: Tensor, axes: Sequence[int]) -> Tensor:
    """The same without axes, all of size 1."""
    gone = set(axes)
    kept = [size for axis, size in enumerate(owners.shape) if axis not in gone]
    return owners.reshape(kept)


def leading(owners: Tensor, kept: int, axes: int) -> Tensor:
    """Joined over all but the first few axes, as the owners of a tensor with so many axes."""
    over = joined_over(owners, range(kept, owners.ndim))
    return over.reshape(tuple(over.shape[:kept]) + (1,) * (axes - kept))


def outputs_of(call: Call) -> list[Tensor]:
    """The results that are tensors."""
    outputs = call.outputs
    if isinstance(outputs, Tensor):
        return [outputs]
    return [part for part in outputs if isinstance(part, Tensor)] if outputs is not None else []
