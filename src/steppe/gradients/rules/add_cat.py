"""Weights that are added to records or concatenated with them, without a layer.

Position embeddings and class tokens. A record's gradient is what arrives at its own place, so there
is nothing to compute but sums where the weight was repeated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.marks import is_marked
from steppe.gradients.rules.arguments import named, only_input
from steppe.gradients.slots.slot import Materialised, OwnRows, reduced_to, wide


class Added(ContactOp):
    """x + w, with w the same for all records."""

    path = "sum"

    def __init__(self, contact: Contact, weight: Tensor) -> None:
        super().__init__(contact)
        self.weight = weight

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (x,) = inputs
        return torch.add(x, self.weight.detach()), ()

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (g,) = grads
        if g is None:
            return (None,)
        own = wide(self.contact.output_layout().split(g, self.contact.records))
        self.slots.append((self.weight, Materialised(reduced_to(self.weight.shape, own))))
        return (g,)


def addition(contact: Contact) -> ContactOp | None:
    """Rule for `x + weight` and `weight + x`; declines where the weight has rows for the records,
    or x itself is repeated."""
    if contact.kwargs or len(contact.args) != 2 or len(contact.shared) != 1:
        return None
    (weight,), x = contact.shared, contact.inputs[0]
    if not only_input(contact, x) or x.dtype != weight.dtype:
        return None
    first = x.ndim - weight.ndim  # the axis of x that meets the weight's first
    along = contact.input_layout().axis - first
    if first < 0 or (along >= 0 and weight.shape[along] != 1):
        return None
    if torch.broadcast_shapes(x.shape, weight.shape) != x.shape:
        return None
    return Added(contact, weight)


class Joined(ContactOp):
    """Records and weights side by side, each record with its own row of the weight."""

    path = "join"

    def __init__(self, contact: Contact, parts: list[Tensor], dim: int) -> None:
        super().__init__(contact)
        self.of_records = [is_marked(part) for part in parts]
        self.weights = [part for part in parts if not is_marked(part)]
        self.sizes, self.dim = [part.shape[dim] for part in parts], dim

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        records, weights = iter(inputs), iter(self.weights)
        parts = [next(records) if own else next(weights).detach() for own in self.of_records]
        return torch.cat(parts, self.dim), ()

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (g,), layout = grads, self.contact.output_layout()
        if g is None:
            return (None,) * len(needs)
        weights, answers = iter(self.weights), []
        for part, own in zip(g.split(self.sizes, self.dim), self.of_records, strict=True):
            if own:
                answers.append(part)
            elif (weight := next(weights)).requires_grad:
                rows = layout.split(part, self.contact.records)
                self.slots.append((weight, OwnRows(layout, rows, tuple(weight.shape))))
        return tuple(a if need else None for a, need in zip(answers, needs, strict=True))


def joining(contact: Contact) -> ContactOp | None:
    """Rule for `torch.cat`; declines where a weight has no row for each record, as where records
    are joined to each other."""
    call = named(contact, "tensors dim out")
    parts, layout = list(call["tensors"]), contact.output_layout()
    dim = call["dim"] or 0
    if not isinstance(dim, int) or call["out"] is not None:
        return None
    dim += parts[0].ndim if dim < 0 else 0
    if dim == layout.axis or len(contact.inputs) != sum(map(is_marked, parts)):
        return None
    length = contact.inputs[0].shape[layout.axis]
    fits = all(
        part.ndim == contact.inputs[0].ndim
        and part.dtype == contact.inputs[0].dtype
        and part.shape[layout.axis] == length
        and layout.holds(tuple(part.shape), contact.records)
        for part in parts
    )
    return Joined(contact, parts, dim) if fits else None
