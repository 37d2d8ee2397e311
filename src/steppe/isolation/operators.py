"""Which of torch's operations a `Watch` treats in a way of their own."""

from __future__ import annotations

from typing import Any

import torch


def packets(names: str) -> list[Any]:
    """Torch's operators of these names, those that this version has."""
    found = (getattr(torch.ops.aten, name, None) for name in names.split())
    return [packet for packet in found if packet is not None]


# Methods of a tensor by which numbers leave torch, or come back as those of another tensor.
_LEAVING_TEXT = """
    numpy tolist data_ptr storage untyped_storage _typed_storage __array__
    __deepcopy__ __dlpack__ __reduce_ex__ __repr__ __format__
"""
LEAVING = frozenset(_LEAVING_TEXT.split())
# About the form of a tensor, not its numbers.
QUESTIONS = frozenset((torch.ops.prim.device.default,))
# Of their tensors only the form counts.
LIKE = frozenset(
    packets(
        "zeros_like ones_like empty_like full_like rand_like randn_like randint_like "
        "new_empty new_zeros new_ones new_full new_empty_strided"
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
EMPTY = frozenset(packets("empty empty_like new_empty empty_strided"))
