"""Attention with dropout and a trained bias on its scores, such as the relative positions of T5.

The fused call drops other weights each time it is computed, and the fallback computes it twice. In
its parts, only the addition of the bias meets a weight, and dropout comes after it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.gradients.marks import is_marked


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The function of the same name in `torch.nn.functional`.

    Declines unless the mask is made from weights and weights of the attention are dropped.
    """
    own = all(map(is_marked, (query, key, value)))
    if not own or attn_mask is None or is_marked(attn_mask) or dropout_p == 0.0 or is_causal:
        return NotImplemented
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    weights = torch.softmax(scores + attn_mask, dim=-1)
    return torch.matmul(F.dropout(weights, dropout_p), value)
