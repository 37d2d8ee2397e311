"""What the functions of torch do that a loop calls: write, read, cut; and what their whole numbers
are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steppe.utils.batches import tensors_in


class Kind(NamedTuple):
    """What is known of a function of torch.

    Attributes:
        name: of it, or the function itself.
        whole: what its whole numbers are.
        writes: to its first argument.
        reads: gives values to Python.
        copies: gives back what is not followed.
        back: is `backward()`.
        parts: gives parts of a tensor.
        cuts: gives a tensor of a size that values may decide.
        other: the name, if it changes gradients without an operation.
        defaults: numbers that torch fills in where the user gives none.
    """

    name: Any
    whole: int
    writes: bool
    reads: bool
    copies: bool
    back: bool
    parts: bool
    cuts: bool
    other: str
    defaults: Mapping[str, float] = MappingProxyType({})

    def given(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keywords, without the numbers that torch has filled in."""
        if not self.defaults:
            return kwargs
        return {
            name: "default" if type(one) is float and one == self.defaults.get(name) else one
            for name, one in kwargs.items()
        }


def writes_by(kwargs: dict[str, Any]) -> bool:
    """Whether a call writes to what it gives back, because it is told to."""
    return kwargs.get("out") is not None or bool(kwargs.get("inplace"))


def decides_size(func: Any, args: Any) -> bool:
    """Whether values decide the size of what such a call gives."""
    if func is not Tensor.__getitem__:
        return True
    return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1:]))


def kind_of(func: Any) -> Kind:
    """What is known of a function, found once."""
    kind = KNOWN[func] = _found(func)
    return kind


def _found(func: Any) -> Kind:
    name = getattr(func, "__name__", "")
    own = getattr(func, "__self__", None)
    if name in ("__get__", "__set__"):
        said = f"{name}{getattr(own, '__name__', '')}"
        other = "grad_fn" if said == "__get__grad_fn" else ""
        return Kind(said, SAYS, said == "__set__data", *(False,) * 5, other)
    bare = name.strip("_")
    plain = bare[1:] if name[:3] in ("__r", "__i") and bare[1:] in _ARITHMETIC else bare
    whole = NUMBER if plain in _ARITHMETIC else SAYS
    if bare in _SIZED or bare.startswith("new_"):
        whole = SIZE
    return Kind(
        name=func,
        whole=whole,
        writes=name == "__setitem__"
        or (name.endswith("_") and not name.endswith("__"))
        or (name.startswith("__i") and (plain != bare or bare in _IN_PLACE)),
        reads=name in READS,
        copies=func in COPIES,
        back=func in BACK,
        parts=bare in ("unbind", "split", "chunk", "tensor_split", "split_with_sizes"),
        cuts=bare == "getitem" or bare in _CUTTING,
        other=name if func in HOOKS or func is torch.autograd.grad else "",
        defaults=_defaults_of(func),
    )


def _defaults_of(func: Callable[..., Any]) -> dict[str, float]:
    if not isinstance(func, FunctionType):
        return {}
    asked = inspect.signature(func, follow_wrapped=False).parameters.values()
    return {one.name: one.default for one in asked if type(one.default) is float}


KNOWN: dict[Callable[..., Any], Kind] = {}
ITEM = Tensor.item

BACK = frozenset((Tensor.backward, torch.autograd.backward))
HOOKS = frozenset((Tensor.register_hook, Tensor.register_post_accumulate_grad_hook))
TEXTS = frozenset((Tensor.__format__, Tensor.__repr__))
COPIES = TEXTS | {Tensor.__reduce_ex__, Tensor.__deepcopy__}
SHARES = frozenset(("numpy", "__array__", "__dlpack__", "data_ptr", "share_memory_"))
EXPORTS = SHARES | frozenset(("tolist", "equal", "allclose"))
READS = EXPORTS | frozenset(
    (
        "item",
        "is_nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__contains__",
        "__format__",
        "__repr__",
    )
)

_IN_PLACE = ("iand", "ior", "ixor", "ilshift", "irshift")
_CUTTING = (
    "argwhere",
    "bincount",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique",
    "unique_consecutive",
)

SAYS, SIZE, NUMBER = range(3)  # what whole numbers are: axes and modes, sizes, or numbers
SAYING = frozenset(
    (
        bool,
        str,
        type(None),
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)
_SIZED = frozenset(
    (
        "broadcast_to",
        "chunk",
        "expand",
        "full_like",
        "getitem",
        "narrow",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "setitem",
        "split",
        "split_with_sizes",
        "tensor_split",
        "tile",
        "unflatten",
        "view",
    )
)
_ARITHMETIC = frozenset(
    (
        "add",
        "addcdiv",
        "addcmul",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clip",
        "div",
        "divide",
        "eq",
        "fill",
        "floor_divide",
        "floordiv",
        "fmod",
        "ge",
        "gt",
        "le",
        "lerp",
        "lt",
        "masked_fill",
        "mod",
        "mul",
        "multiply",
        "ne",
        "pow",
        "remainder",
        "rsub",
        "sub",
        "subtract",
        "true_divide",
        "truediv",
        "where",
    )
)
