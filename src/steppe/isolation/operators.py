"""Which of torch's operations a `Watch` treats in a way of their own."""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten


def packets(names: str) -> list[Any]:
    """Torch's operators of these names."""
    return [getattr(_aten, name) for name in names.split()]


# Methods of a tensor by which numbers leave torch, or come back as those of another tensor.
LEAVING = frozenset(
    (
        "numpy",
        "tolist",
        "data_ptr",
        "storage",
        "untyped_storage",
        "_typed_storage",
        "__array__",
        "__deepcopy__",
        "__dlpack__",
        "__reduce_ex__",
        "__repr__",
        "__format__",
    )
)
# About the form of a tensor, not its numbers.
QUESTIONS = frozenset((torch.ops.prim.device.default,))
# Of their tensors only the form counts.
LIKE = frozenset(
    (
        _aten.zeros_like,
        _aten.ones_like,
        _aten.empty_like,
        _aten.full_like,
        _aten.rand_like,
        _aten.randn_like,
        _aten.randint_like,
        _aten.new_empty,
        _aten.new_zeros,
        _aten.new_ones,
        _aten.new_full,
        _aten.new_empty_strided,
    )
)
# What they write to is written over, whatever was there.
OVER = frozenset(
    packets(
        "copy_ fill_ zero_ normal_ uniform_ exponential_ random_ bernoulli_ log_normal_ geometric_ "
        "cauchy_"
    )
)
# Numbers of nobody that only go elsewhere; a record alone may be looked at.
MOVING = frozenset(
    packets(
        "view _unsafe_view reshape unsqueeze squeeze _reshape_alias expand permute transpose t "
        "slice select split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind "
        "unsafe_chunk narrow diagonal unfold detach alias as_strided copy_ squeeze_ unsqueeze_ t_ "
        "transpose_ clone _to_copy index index_select gather constant_pad_nd select_backward "
        "slice_backward diagonal_backward fill_ zero_"
    )
)
# The same numbers in the same order, written out or not.
COPYING = frozenset(packets("clone view _unsafe_view reshape _reshape_alias"))
EMPTY = frozenset((_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided))
