"""The path of a pass: the functions of torch that it calls on records, with their constants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# For a tensor of a subclass, such as a fake one, Python swaps the operands.
_TURNED: dict[Any, Any] = {
    getattr(Tensor, one): getattr(Tensor, other)
    for one, other in (("gt", "lt"), ("ge", "le"), ("__gt__", "__lt__"), ("__ge__", "__le__"))
}


# Functions whose integers are sizes, which may depend on the number of records, or operands, and
# not axes.
_OF_SIZES_TEXT = """
    view reshape expand repeat tile broadcast_to resize_ as_strided affine_grid sum_to_size
    zeros ones full empty empty_strided rand randn randint randperm normal eye arange linspace
    tensor new_tensor new_zeros new_ones new_full new_empty new_empty_strided full_like randint_like
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d fold
    add sub mul div true_divide floor_divide remainder fmod pow rsub subtract multiply divide
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__
    __rtruediv__ __itruediv__ __rdiv__ __idiv__ __div__ __floordiv__ __rfloordiv__ __ifloordiv__
    __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    eq ne lt le gt ge clamp clamp_min clamp_max clip clamp_ clip_ minimum maximum where
    add_ sub_ mul_ div_ pow_ fill_ masked_fill masked_fill_ fill uniform_ normal_ random_
"""
_OF_SIZES = frozenset(_OF_SIZES_TEXT.split())
# Functions with one axis among sizes, and its position.
_AXIS_AT = {
    **dict.fromkeys(("narrow", "select", "unfold", "unflatten", "narrow_copy"), 1),
    **dict.fromkeys(("split", "chunk", "tensor_split", "repeat_interleave", "unsafe_split"), 2),
    **dict.fromkeys(("split_with_sizes", "unsafe_chunk", "split_copy"), 2),
}
_INDEXING = frozenset(("__getitem__", "__setitem__"))
_AXIS_NAMES = frozenset(("dim", "axis", "dims"))
_FREE = "without records"  # before a call that was given none


def note_call(
    calls: list[Any], func: Any, args: Any, kwargs: dict[str, Any], on_records: bool = True
) -> None:
    """Record a call, with arguments that do not depend on the number of records.

    Integers are axes, unless the function takes sizes. Calls without records may depend on the
    batch size: the proof compares their results.
    """
    if func is Tensor.view_as:
        return  # torch itself adds those of hooks
    name = getattr(func, "__name__", "")
    by_name: Any
    if not on_records or name in _OF_SIZES:
        kinds, by_name = _WITHOUT, ()
    elif name in _AXIS_AT or name in _INDEXING:
        kinds, by_name = _WITHOUT, _AXIS_NAMES
    else:
        kinds, by_name = _WITH_AXES, None
    func = _TURNED.get(func, func)
    told = [value for value in args if type(value) in kinds]
    if by_name is _AXIS_NAMES:
        told += _axis(name, args)
    if kwargs:
        told += [
            (key, value)
            for key, value in kwargs.items()
            if type(value) in kinds or (by_name and key in by_name and type(value) is int)
        ]
    if not on_records:
        calls.append((_FREE, func, *map(_hashable, told)))
    else:
        calls.append((func, *map(_hashable, told)) if told else func)


def note_failure(calls: list[Any], func: Any) -> None:
    """Record that a call failed, because code may catch the error and treat all differently."""
    calls.append((func, "failed"))


def on_records(calls: list[Any]) -> list[Any]:
    """The recorded calls that had records among their arguments."""
    return [call for call in calls if type(call) is not tuple or call[0] is not _FREE]


def name_of(call: Any) -> str:
    """The function's name, for errors."""
    if type(call) is tuple:
        call = call[1] if call[0] is _FREE else call[0]
    return getattr(call, "__name__", str(call))


def _axis(name: str, args: Any) -> list[Any]:
    """The axis in a call whose other integers are sizes or positions."""
    if name in _INDEXING:
        index = args[1]
        return [tuple(map(_kind, index)) if type(index) is tuple else _kind(index)]
    place = _AXIS_AT[name]
    return [args[place]] if len(args) > place and type(args[place]) is int else []


def _kind(index: Any) -> type:
    return Tensor if isinstance(index, Tensor) else type(index)  # fake ones stand for others


_WITHOUT = frozenset((bool, str, torch.dtype))
_WITH_AXES = _WITHOUT | {int, tuple, list}


def _hashable(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(
            [_hashable(item) for item in value if type(item) in _WITH_AXES or type(item) is type]
        )
    return value


Path = tuple[tuple[Any, ...], frozenset[Any]]
"""The calls of a forward pass in order, and those of its backward pass."""


def path_of(calls: list[Any], backward_calls: list[Any]) -> Path:
    """The path of one pass, without calls of saved-tensor hooks in the backward pass."""
    return tuple(calls), frozenset(backward_calls)
