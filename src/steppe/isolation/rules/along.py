"""Rules of operations along an axis that keep it, such as softmax and sorting."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import FREE, everywhere, join, joined_over
from steppe.isolation.rules.arguments import aligned, axes_of, outputs_of, owned_tensors


def along(call: Call) -> list[Tensor]:
    """Those of all elements along `dim`, by default the last axis."""
    outputs = outputs_of(call)
    ndim = outputs[0].ndim
    dim = call["dim"]
    axes = axes_of(-1 if dim is None else dim, ndim)
    tensors = list(call.tensors())
    # Of a gate, one has half the size of the other along the axis.
    parts = [joined_over(aligned(call.owners(t), ndim), axes) for t in owned_tensors(call)]
    found = join(parts)
    for tensor in tensors:
        if call.is_free(tensor):
            call.require_same_for_all(tensor, found)
    return [aligned(found, out.ndim) for out in outputs]


def bounded(call: Call) -> list[Tensor]:
    """Those of all elements of the same slice along `dim`."""
    tensor = call["self"]
    kept = call["dim"] % tensor.ndim
    over = [axis for axis in range(tensor.ndim) if axis != kept]
    return [joined_over(call.owners(tensor), over)]


def transformed(call: Call) -> list[Tensor]:
    """Those of all elements along the transformed axes."""
    tensor = call["self"]
    return [joined_over(call.owners(tensor), axes_of(call["dim"], tensor.ndim))]


def chosen(call: Call) -> list[Tensor]:
    """Those of all weights along the last axis."""
    owners = call.owners(call["self"])
    return [joined_over(owners, [owners.ndim - 1])]


def sorted_into(call: Call) -> list[Tensor]:
    """Those of the value and of the boundaries."""
    (out,) = outputs_of(call)
    values = call["self"]
    bounds = call["boundaries"] if call["boundaries"] is not None else call["sorted_sequence"]
    parts = [everywhere(out.ndim, FREE)]
    if not call.is_free(values):
        parts.append(aligned(call.owners(values), out.ndim))
    for along in (bounds, call["sorter"]):
        if not call.is_free(along):
            last = joined_over(call.owners(along), [along.ndim - 1])
            # Boundaries have an axis, and a number alone has none.
            parts.append(aligned(last, out.ndim) if out.ndim else last.reshape(()))
    return [join(parts)]


def gates(call: Call) -> list[Tensor]:
    """Those of the whole row."""
    rows = [
        joined_over(call.owners(t), range(1, t.ndim)).reshape(-1, 1) for t in owned_tensors(call)
    ]
    return [aligned(join(rows), out.ndim) for out in outputs_of(call)]


RULES = (
    (
        along,
        packets(
            "_softmax _log_softmax _safe_softmax _softmax_backward_data "
            "_log_softmax_backward_data cumsum cumprod logcumsumexp cummax cummin sort argsort "
            "topk glu glu_backward _masked_softmax _masked_softmax_backward"
        ),
    ),
    (bounded, packets("renorm")),
    (transformed, packets("_fft_r2c _fft_c2r _fft_c2c")),
    (chosen, packets("multinomial")),
    (sorted_into, packets("bucketize searchsorted")),
    (gates, packets("_thnn_fused_lstm_cell _thnn_fused_gru_cell")),
)
