"""The form of an operation's result on fake tensors, without what `FakeTensorMode` does around it.

The mode keeps a table of calls, looks for decompositions and for devices, and takes several times
as long as torch's own kernel for forms. Where shapes, types and strides of the result follow from
those of the arguments alone, that kernel is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

from steppe.utils.batches import tensors_in

_FORM: dict[Any, bool] = {}
_SPECIAL = frozenset(
    (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
)


def fake_result(fake: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result; None where the mode has to be asked after all.

    Args:
        fake: the mode that made the tensors.
        func: torch's operator.
        args, kwargs: fake tensors among them.
    """
    if not _follows_from_arguments(func, kwargs):
        return None
    given = list(tensors_in((*args, *kwargs.values())))
    place = given[0].device
    if any(getattr(t, "fake_mode", None) is not fake or t.device != place for t in given):
        return None
    with in_kernel_invocation_manager(fake):
        try:
            made = func(*args, **kwargs)
        except Exception:  # what is wrong, the longer way says in words for users
            return None
        if any(tensor.device.type != "meta" for tensor in tensors_in((made,))):
            return None

    def wrapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if isinstance(value, FakeTensor) else FakeTensor(fake, value, place)
        if isinstance(value, (list, tuple)):
            return type(value)([wrapped(item) for item in value])
        return value

    return wrapped(made)


def _follows_from_arguments(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the result's form follows from the arguments', and it lies where they lie."""
    found = _FORM.get(func)
    if found is None:
        found = _FORM[func] = not _SPECIAL.intersection(func.tags)
    return found and kwargs.get("device") is None
