"""Rules of fused attention."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import join, joined_over
from steppe.isolation.rules.arguments import aligned, outputs_of


def attended(call: Call) -> list[Tensor]:
    """Those of the query, and of all keys and values of the same head."""
    query = call["query"]
    ndim = query.ndim
    head = [ndim - 2, ndim - 1]
    parts = [joined_over(call.owners(query), [ndim - 1])]
    parts += [joined_over(call.owners(call[name]), head) for name in ("key", "value")]
    given = [query, call["key"], call["value"]]
    mask = call["attn_mask"] if call["attn_mask"] is not None else call["attn_bias"]
    if isinstance(mask, Tensor):
        given.append(mask)
        parts.append(joined_over(aligned(call.owners(mask), ndim), [ndim - 1]))
    found = join(parts)
    whole = joined_over(found, head)
    for tensor in given:
        if call.is_free(tensor):
            call.require_same_for_all(tensor, whole)
    return [
        found
        if out.ndim == ndim
        else whole.squeeze(-1)
        if out.ndim == ndim - 1
        else joined_over(whole, range(ndim)).reshape((1,) * out.ndim)
        for out in outputs_of(call)
    ]


def attended_back(call: Call) -> list[Tensor]:
    """Those of all queries, keys and values of the same head."""
    outputs = outputs_of(call)
    ndim = outputs[0].ndim
    parts = []
    for tensor in call.tensors():
        if call.is_free(tensor):
            continue
        owners = call.owners(tensor)
        if tensor.ndim == ndim - 1:  # statistics of each query
            owners = owners.unsqueeze(-1)
        owners = aligned(owners, ndim)
        parts.append(joined_over(owners, [ndim - 2, ndim - 1]))
    found = join(parts)
    return [found for _ in outputs]


RULES = (
    (
        attended,
        packets(
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
            "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
            "_scaled_dot_product_fused_attention_overrideable"
        ),
    ),
    (
        attended_back,
        packets(
            "_scaled_dot_product_flash_attention_for_cpu_backward "
            "_scaled_dot_product_flash_attention_backward "
            "_scaled_dot_product_efficient_attention_backward "
            "_scaled_dot_product_cudnn_attention_backward"
        ),
    ),
)
