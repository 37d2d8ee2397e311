"""Multi-head attention, written as the smaller calls it consists of.

`F.multi_head_attention_forward` is one call to the tracer, which hides the weights inside it. Here
it is again with the record axis first and everything in the open: projections, scaled dot products,
softmax. All that touches weights is linear, so the linear kernels serve it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.errors import UnsupportedModelError
from steppe.gradients.marks import is_marked
from steppe.gradients.rules.projections import projections
from steppe.gradients.rules.short_attention import short_attention, takes


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The function of the same name in `torch.nn.functional`, argument by argument.

    Sequences are `(L, N, E)` as there; the records lie along N.
    """
    _check(query, embed_dim_to_check, num_heads, attn_mask, is_causal)
    length, rows, width = query.shape
    causal = is_causal and key_padding_mask is None and not need_weights
    weights = (
        (q_proj_weight, k_proj_weight, v_proj_weight)
        if use_separate_proj_weight
        else in_proj_weight
    )
    marked = (t for t in (query, key, value, key_padding_mask, attn_mask) if t is not None)
    like = next(filter(is_marked, marked), query)
    dropout = dropout_p if training else 0.0
    if isinstance(weights, Tensor) and query is key and key is value:
        x = _for_each_record(query.transpose(0, 1), like)
        packed = F.linear(x, weights, in_proj_bias)
        optional = (attn_mask, key_padding_mask, bias_k, bias_v, static_k, static_v)
        bare = packed.shape[-1] == 3 * width and all(given is None for given in optional)
        plain = not (need_weights or causal or add_zero_attn or dropout > 0.0)
        if bare and plain and takes(packed, num_heads):
            mixed = short_attention(packed, num_heads)
            return F.linear(mixed, out_proj_weight, out_proj_bias).transpose(0, 1), None
        q, k, v = packed.split(width, -1)
    else:
        q, k, v = _projected(query, key, value, weights, in_proj_bias, like)
    mask = None if causal else _merged(attn_mask, key_padding_mask, num_heads, q)

    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.expand(rows, -1, -1)], 1)
        v = torch.cat([v, bias_v.expand(rows, -1, -1)], 1)
        mask = None if mask is None else F.pad(mask, (0, 1))
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v))
    if static_k is not None:
        k = _for_each_record(static_k.unflatten(0, (rows, num_heads)), like)
    if static_v is not None:
        v = _for_each_record(static_v.unflatten(0, (rows, num_heads)), like)
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = None if mask is None else F.pad(mask, (0, 1))

    attention = None
    if need_weights:
        scores = torch.matmul(q * math.sqrt(1.0 / q.shape[-1]), k.mT)
        attention = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        if dropout > 0.0:
            attention = F.dropout(attention, dropout)
        mixed = torch.matmul(attention, v)
        attention = attention.mean(1) if average_attn_weights else attention
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    mixed = mixed.transpose(1, 2).reshape(rows, length, width)
    return F.linear(mixed, out_proj_weight, out_proj_bias).transpose(0, 1), attention


def _check(
    query: Tensor, width: int, heads: int, attn_mask: Tensor | None, is_causal: bool
) -> None:
    if query.ndim != 3:
        raise UnsupportedModelError(
            f"multi_head_attention query shape={tuple(query.shape)}: must have three axes, one of "
            "them the records; a sequence without a record axis cannot be told apart by record, "
            "so add the axis."
        )
    if query.shape[-1] != width or width % heads:
        raise UnsupportedModelError(
            f"multi_head_attention query width={query.shape[-1]}: must be embed_dim={width} and a "
            f"multiple of num_heads={heads}; build the layer for this width."
        )
    if is_causal and attn_mask is None:
        raise UnsupportedModelError(
            "multi_head_attention is_causal=True: is a hint about attn_mask, which is missing; "
            "pass nn.Transformer.generate_square_subsequent_mask(length) as attn_mask."
        )


def _projected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor | tuple[Tensor | None, ...] | None,
    bias: Tensor | None,
    like: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of different sequences, `(N, L, E)` each."""
    width = query.shape[-1]
    q, k, v = (_for_each_record(t.transpose(0, 1), like) for t in (query, key, value))
    if isinstance(weights, Tensor) and key is value:
        q, both = projections((q, k), weights, bias, (width, 2 * width))
        k, v = both.split(width, -1)
        return q, k, v
    q, k, v = projections((q, k, v), weights, bias, (width, width, width))
    return q, k, v


def _for_each_record(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` as something made from records, so that its row i counts as record i's own.

    Learned queries and trainable masks come without any trace of a record, though they have a row
    for each; adding zeros that do carry the trace says whose row is whose.
    """
    if is_marked(tensor):
        return tensor
    return tensor + like.new_zeros(tensor.shape, dtype=tensor.dtype)


def _merged(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int, like: Tensor
) -> Tensor | None:
    """Both masks as one float mask that broadcasts to `(N, heads, L, S)`."""
    rows = like.shape[0]
    mask = None if attn_mask is None else _additive(attn_mask, like.dtype)
    if mask is not None:
        mask = mask.unflatten(0, (rows, heads)) if mask.ndim == 3 else mask[None, None]
        if mask.requires_grad and not is_marked(mask):
            mask = mask + like.new_zeros(rows, heads, *mask.shape[-2:])
    if key_padding_mask is None:
        return mask
    padding = _additive(key_padding_mask, like.dtype)[:, None, None]
    return padding if mask is None else mask + padding


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to the scores: True becomes −∞."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
