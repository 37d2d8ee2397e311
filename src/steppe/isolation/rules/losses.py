"""Rules of losses that torch computes in one operation."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import FREE, everywhere, join, joined_over
from steppe.isolation.rules.arguments import (
    aligned,
    broadcast,
    outputs_of,
    owned_tensors,
    with_all_of,
    without,
)


def compared(call: Call) -> list[Tensor]:
    """Those of output and target at the same position; reduced: those of all."""
    tensors = [t for t in call.tensors() if t.ndim or not call.is_free(t)]
    axes = max(t.ndim for t in tensors)
    found = broadcast(call, tensors, axes)
    (out,) = outputs_of(call)
    if out.ndim == axes and (call["reduction"] == 0 or "backward" in call.name):
        return [found]
    return [joined_over(found, range(axes)).reshape(())]


def of_classes(call: Call) -> list[Tensor]:
    """Those of a row and its target; of reduced losses and the sum of weights: those of all."""
    x, target = call["self"], call["target"]
    axis = 1 if x.ndim > 1 else 0
    over = without(joined_over(call.owners(x), [axis]), [axis])
    whose = call.owners(target).reshape(_shape(call.owners(target), over.ndim))
    found = with_all_of(call, join([over, whose]), "weight")
    whole = joined_over(found, range(found.ndim)).reshape(())
    each, _ = outputs_of(call)
    return [found if each.ndim == found.ndim and call["reduction"] == 0 else whole, whole]


def of_classes_back(call: Call) -> list[Tensor]:
    """Those of a row, its target and its gradient; reduced: also those of the sum of weights."""
    grad, x, target = call["grad_output"], call["self"], call["target"]
    axis = 1 if x.ndim > 1 else 0
    parts = [joined_over(call.owners(x), [axis])]
    for tensor in (grad, target):
        owners = call.owners(tensor)
        if tensor.ndim == x.ndim - 1:
            owners = owners.unsqueeze(axis)
        parts.append(aligned(owners, x.ndim))
    if call["reduction"] != 0:
        whole = joined_over(call.owners(call["total_weight"]), [])
        parts.append(aligned(whole, x.ndim))
    return [with_all_of(call, join(parts), "weight")]


def _shape(owners: Tensor, axes: int) -> tuple[int, ...]:
    return tuple(owners.shape) if owners.ndim == axes else (1,) * axes


def of_rows(call: Call) -> list[Tensor]:
    """Those of the whole row and its target; reduced: those of all."""
    parts = [everywhere(1, FREE)]
    alone = call["self"].ndim < 2  # one row
    for tensor in owned_tensors(call):
        if tensor is not call["weight"]:
            kept = 0 if alone or not tensor.ndim else 1
            over = joined_over(call.owners(tensor), range(kept, tensor.ndim))
            parts.append(over.reshape(-1))
    rows = with_all_of(call, join(parts), "weight")
    found = []
    for out in outputs_of(call):
        if out.ndim and call["reduction"] == 0:
            found.append(rows.reshape((-1,) + (1,) * (out.ndim - 1)))
        else:
            found.append(joined_over(rows, [0]).reshape((1,) * out.ndim))
    return found


RULES = (
    (
        compared,
        packets(
            "mse_loss mse_loss_backward huber_loss huber_loss_backward smooth_l1_loss "
            "smooth_l1_loss_backward binary_cross_entropy binary_cross_entropy_backward "
            "soft_margin_loss soft_margin_loss_backward l1_loss binary_cross_entropy_with_logits"
        ),
    ),
    (of_classes, packets("nll_loss_forward nll_loss2d_forward")),
    (of_classes_back, packets("nll_loss_backward nll_loss2d_backward")),
    (
        of_rows,
        packets(
            "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
            "multilabel_margin_loss_backward"
        ),
    ),
)
