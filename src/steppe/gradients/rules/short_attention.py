"""Attention among the positions of a short sequence, by a compiled kernel.

Torch's own kernel divides sequences into blocks, which pays where they are long. For a hundred
positions it takes two to four times as long as one pass in which a head never leaves the cache.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

try:
    from steppe.gradients.native import _attention
except ImportError:  # installed without a C compiler, or a processor without AVX2
    COMPILED = False
else:
    COMPILED = True


def takes(packed: Tensor, heads: int) -> bool:
    """Whether there is a compiled kernel, and for such queries, keys and values."""
    if not COMPILED or packed.dtype != torch.float32 or packed.device.type != "cpu":
        return False
    positions, width = packed.shape[1], packed.shape[2] // (3 * heads)
    short = 0 < positions <= _attention.LONGEST
    return short and 0 < width <= _attention.WIDEST and width % _attention.LANES == 0


def short_attention(packed: Tensor, heads: int) -> Tensor:
    """softmax(q kᵀ / √width) v for every record and head.

    Args:
        packed: queries, keys and values of all heads after each other, `(B, T, 3·heads·width)`,
            which the kernel `takes`.
        heads: how many.

    Returns:
        The mixed values, `(B, T, heads·width)`.

    Guarantees:
        A record's outputs and gradients are the same to the last bit, whoever and however many the
        others are; gradients that are to be differentiated again are torch's.
    """
    if has_torch_function((packed,)):
        found: Tensor = handle_torch_function(short_attention, (packed,), packed, heads)
        return found
    if type(packed) is not Tensor:  # such as one without numbers, whose operations are followed
        return _differentiable(packed, heads)
    packed = packed.contiguous().resolve_neg()
    mixed: Tensor = _ShortAttention.apply(packed, heads)  # type: ignore[no-untyped-call]
    return mixed


class _ShortAttention(torch.autograd.Function):
    """The kernel's two passes."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, heads: int) -> Tensor:
        sizes = _sizes(packed, heads)
        records, positions, _, width = sizes[:4]
        mixed = packed.new_empty(records, positions, heads * width)
        filled_up = -(-positions // _attention.LANES) * _attention.LANES
        shares = packed.new_empty(records, heads, positions, filled_up)
        _attention.attend(packed.detach().numpy(), shares.numpy(), mixed.numpy(), *sizes)
        ctx.save_for_backward(packed, shares)
        ctx.heads = heads
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch._C.DisableTorchFunction():  # how gradients are captured is ours
            return _back(ctx, grad)


def _back(ctx: Any, grad: Tensor) -> Any:
    packed, shares = ctx.saved_tensors
    if torch.is_grad_enabled():  # this gradient will be differentiated again
        again = _differentiable(packed, ctx.heads)
        return *torch.autograd.grad(again, packed, grad, create_graph=True), None
    out = torch.empty_like(packed)
    _attention.attend_backward(
        packed.detach().numpy(),
        shares.numpy(),
        grad.contiguous().resolve_neg().numpy(),
        out.numpy(),
        *_sizes(packed, ctx.heads),
    )
    return out, None


def _differentiable(packed: Tensor, heads: int) -> Tensor:
    """The same by torch's own operations, which can be differentiated as often as one likes."""
    q, k, v = (
        part.unflatten(-1, (heads, -1)).transpose(1, 2)
        for part in packed.split(packed.shape[-1] // 3, -1)
    )
    scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.mT)
    return torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).flatten(2)


def _sizes(packed: Tensor, heads: int) -> tuple[int, int, int, int, float, int]:
    """What the kernel is told about its buffers, and the number of threads."""
    records, positions, numbers = packed.shape
    width = numbers // (3 * heads)
    return records, positions, heads, width, 1.0 / math.sqrt(width), torch.get_num_threads()
