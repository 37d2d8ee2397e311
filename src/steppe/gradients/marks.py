"""Marks on tensors that were made from records, with the number of the pass that made them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from steppe.utils.batches import tensors_in

_MARK = "_steppe_made_from_records"
ANY_PASS = 0


def mark(value: Any, number: int = ANY_PASS) -> None:
    """Mark the tensors in `value` as computed from records.

    Args:
        value: a tensor or a nest of them.
        number: of the pass of these records, see `Tracer`; no other pass may use them.
    """
    if isinstance(value, Tensor):
        setattr(value, _MARK, number)
        return
    for tensor in tensors_in(value):
        setattr(tensor, _MARK, number)


def unmark(tensor: Tensor) -> None:
    """Remove the mark of a tensor."""
    if is_marked(tensor):
        delattr(tensor, _MARK)


def is_marked(tensor: Tensor) -> bool:
    """Whether a tensor depends on records."""
    return hasattr(tensor, _MARK)


def pass_of(tensor: Tensor) -> int:
    """The number of the pass that made a marked tensor."""
    return int(getattr(tensor, _MARK))


def made_in_another(tensor: Tensor, number: int) -> bool:
    """Whether a tensor was made from the records of another pass."""
    return getattr(tensor, _MARK, number) not in (number, ANY_PASS)


def sort_arguments(
    values: Iterable[Any], inputs: list[Tensor], shared: list[Tensor], number: int
) -> Tensor | None:
    """Sort arguments into tensors made from records, and from weights that need a gradient.

    Returns a tensor that another pass has made, if there is one. Called for every torch operation
    of the model, so it does no more.
    """
    stale: Tensor | None = None
    for value in values:
        if isinstance(value, Tensor):
            made_by = getattr(value, _MARK, None)
            if made_by is not None:
                inputs.append(value)
                if made_by != number and made_by != ANY_PASS:
                    stale = value
            elif value.requires_grad:
                shared.append(value)
        elif isinstance(value, (tuple, list, dict)):
            inside = value.values() if isinstance(value, dict) else value
            found = sort_arguments(inside, inputs, shared, number)
            stale = stale if found is None else found
    return stale


def mark_results(output: Any, args: tuple[Any, ...], func: Any, number: int) -> None:
    """Mark the results of a call on records, except arguments that it returns unchanged.

    For example, `buffer.type_as(x)` is the buffer itself if the types are equal.
    """
    if isinstance(output, Tensor):
        if not args or output is not args[0] or _in_place(func):
            setattr(output, _MARK, number)
    elif output is not None:
        handed = {id(arg) for arg in args}
        for tensor in tensors_in(output):
            if id(tensor) not in handed:
                setattr(tensor, _MARK, number)
    if func is Tensor.__setitem__:
        mark(args[0], number)


def _in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name[-1:] == "_" and (name[-2:] != "__" or name[:3] == "__i")
