"""Pulls per-example gradients of computed tensors back to the weights.

For a standardised convolution weight, a slice of a packed projection or a position embedding looked
up by index, the contact is with a tensor that was computed from weights. Autograd pulls its
per-example gradients back to the weights, all records in one batched call. Three common cases are
computed without a copy of the whole weight for each record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._vmap_internals import _vmap

from steppe.gradients.one_at_a_time.by_vmap import whole_batch_refused
from steppe.gradients.slots.embedding import EmbeddingRows
from steppe.gradients.slots.slot import Materialised, OwnRows, Slot, reduced_to
from steppe.gradients.tracing import BackwardCalls, new_number

Pair = tuple[Tensor, Slot]


def shortened(shared: Tensor, slot: Slot) -> Pair:
    """The weight and its slot in one of the common cases, and otherwise the arguments."""
    made: Any = shared.grad_fn
    if made is None:
        return shared, slot
    turned, node = False, made
    while shared.ndim == 2 and _turns(node):
        turned, node = not turned, node.next_functions[0][0]
    if node is not made and hasattr(node, "variable"):
        return node.variable, slot.transposed() if turned else slot
    leaf = getattr(made.next_functions[0][0], "variable", None) if made.next_functions else None
    if leaf is None:
        return shared, slot
    if made.name() == "EmbeddingBackward0" and not made._saved_scale_grad_by_freq:
        return leaf, _through_lookup(made, leaf, slot)
    if made.name() == "ExpandBackward0" and isinstance(slot, OwnRows):
        return leaf, Materialised(reduced_to(leaf.shape, slot.gradients))
    return shared, slot


def pulled_back(plain: list[Pair], derived: list[Pair], leaves: Iterable[Tensor]) -> list[Pair]:
    """One slot for each weight, including its gradients through computed tensors.

    Args:
        plain: slots of weights in contacts.
        derived: slots of tensors that were computed from weights.
        leaves: the weights that need a gradient.
    """
    weights = list(leaves)
    tensors = tuple([tensor for tensor, _ in derived])

    def back(gradients: tuple[Tensor, ...]) -> Any:
        # As `torch.autograd.grad` does, which would disable the mode below.
        run = torch.autograd.Variable._execution_engine.run_backward
        return run(tensors, gradients, False, False, tuple(weights), True, accumulate_grad=False)

    gradients = tuple([slot.written_out().to(tensor.dtype) for tensor, slot in derived])
    # The user's hooks and functions see one record, and only in this pass.
    with BackwardCalls([], new_number()), whole_batch_refused():
        pulled = _vmap(back, 0, 0, allow_none_pass_through=True)(gradients)
    reached = {
        id(leaf): gradient
        for leaf, gradient in zip(weights, pulled, strict=True)
        if gradient is not None
    }
    result: list[Pair] = []
    for leaf, slot in plain:
        extra = reached.pop(id(leaf), None)
        result.append((leaf, slot if extra is None else Materialised(slot.written_out() + extra)))
    return result + [(w, Materialised(reached[id(w)])) for w in weights if id(w) in reached]


def _turns(node: Any) -> bool:
    """Whether a node of the graph is the transposition of a matrix."""
    name = "" if node is None else node.name()
    if name == "TransposeBackward0":  # axes may count from the end, as unsigned numbers
        return bool((node._saved_dim0 ^ node._saved_dim1) & 1)
    return name == "TBackward0" or (name == "PermuteBackward0" and bool(node._saved_dims[0] & 1))


def _through_lookup(made: Any, table: Tensor, slot: Slot) -> Slot:
    """`F.embedding(constant indices, table)`: the gradient has only the rows looked up."""
    gradients = slot.written_out()
    indices, records = made._saved_indices.flatten(), len(gradients)
    rows = EmbeddingRows(
        gradients.reshape(-1, gradients.shape[-1]),
        indices.repeat(records),
        torch.arange(records, device=indices.device).repeat_interleave(len(indices)),
        records,
        tuple(table.shape),
    )
    padding = made._saved_padding_idx
    return rows.where(rows.indices != padding) if 0 <= padding < len(table) else rows
