"""Operations of torch that a `Watch` treats specially."""

from __future__ import annotations

from typing import Any

import torch


def packets(names: str) -> list[Any]:
    """The operators with these names that this version of torch has."""
    found = (getattr(torch.ops.aten, name, None) for name in names.split())
    return [packet for packet in found if packet is not None]


# Methods by which values leave torch, or return as another tensor.
_LEAVING_TEXT = """
    numpy tolist data_ptr storage untyped_storage _typed_storage __array__
    __deepcopy__ __dlpack__ __reduce_ex__ __repr__ __format__
"""
LEAVING = frozenset(_LEAVING_TEXT.split())
# They depend on the shape and type of a tensor, not on its values.
QUESTIONS = frozenset((torch.ops.prim.device.default,))
# Only shapes and types of their arguments matter.
LIKE = frozenset(
    packets(
        "zeros_like ones_like empty_like full_like rand_like randn_like randint_like "
        "new_empty new_zeros new_ones new_full new_empty_strided"
    )
)
# They overwrite their argument, whatever it contained.
OVER = frozenset(
    packets(
        "copy_ fill_ zero_ normal_ uniform_ exponential_ random_ bernoulli_ log_normal_ geometric_ "
        "cauchy_"
    )
)
# Values without an owner that are only moved.
MOVING = frozenset(
    packets(
        "view _unsafe_view reshape unsqueeze squeeze _reshape_alias expand permute transpose t "
        "slice select split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind "
        "unsafe_chunk narrow diagonal unfold detach alias as_strided copy_ squeeze_ unsqueeze_ t_ "
        "transpose_ clone _to_copy index index_select gather constant_pad_nd select_backward "
        "slice_backward diagonal_backward fill_ zero_"
    )
)
# The same values in the same order, copied or not.
COPYING = frozenset(packets("clone view _unsafe_view reshape _reshape_alias"))
# The same tensor in another form; the one before is asked for first.
LAID_ANEW = frozenset(packets("as_strided_"))
EMPTY = frozenset(packets("empty empty_like new_empty empty_strided"))
