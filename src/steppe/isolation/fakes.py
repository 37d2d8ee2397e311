"""Operations on fake tensors, which have shapes and types but no values.

What `FakeTensorMode` does around each of them (a table of calls, a search for decompositions and
for devices) takes several times as long as torch's own kernel for forms. Where shapes, types and
strides of the result follow from those of the arguments alone, that kernel is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import _disable_current_modes

from steppe.isolation.schemas import storage_of
from steppe.utils.batches import tensors_in

_FORM: dict[Any, bool] = {}
_SPECIAL = frozenset(
    (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
)


class Fakes:
    """Runs operations on fake tensors in place of real ones.

    Args:
        mode: makes the fake tensors.
        told: about a real memory and the fake one that stands for it.
    """

    def __init__(self, mode: FakeTensorMode, told: Callable[[Any, Any], None]) -> None:
        self._mode, self._told = mode, told
        # By real memory and type: that memory, and a fake one for all tensors that look at it.
        self._twins: dict[tuple[int, torch.dtype], tuple[Any, Tensor]] = {}

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operation; for an in-place operation, the changed argument itself."""
        fakes: dict[int, Tensor] = {}

        def fake(value: Any) -> Any:
            if isinstance(value, Tensor):
                found = self._as_fake(value)
                fakes[id(found)] = value
                return found
            if isinstance(value, (list, tuple)):
                return type(value)([fake(item) for item in value])
            return value

        def back(value: Any) -> Any:
            if isinstance(value, Tensor):
                return fakes.get(id(value), value)
            if isinstance(value, (list, tuple)):
                return type(value)([back(item) for item in value])
            return value

        given, named = fake(args), {key: fake(value) for key, value in kwargs.items()}
        made = _result(self._mode, func, given, named)
        return back(func(*given, **named) if made is None else made)

    def _as_fake(self, tensor: Tensor) -> Tensor:
        """The same form without numbers.

        Real tensors over one memory have fake ones over one memory, so that a write through one of
        them is seen through all.
        """
        if isinstance(tensor, FakeTensor) or tensor.layout != torch.strided:
            return tensor
        storage = storage_of(tensor)
        key = (storage._cdata, tensor.dtype)
        with _disable_current_modes(), self._mode:
            if key not in self._twins:
                size = storage.nbytes() // tensor.element_size()
                made = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
                self._twins[key] = (storage, made)
                self._told(storage, storage_of(made))
            offset = int(tensor.storage_offset())
            return self._twins[key][1].as_strided(tensor.shape, tensor.stride(), offset)


def _result(fake: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
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
