"""Several inputs through blocks of one weight, as in attention between two sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.rules.linear import outer
from steppe.gradients.slots.outer import Summed
from steppe.gradients.slots.slot import Materialised, Slot


def projections(
    inputs: tuple[Tensor, ...],
    weight: Tensor | tuple[Tensor | None, ...] | None,
    bias: Tensor | None,
    sizes: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """Different inputs through blocks of one weight: inputs[j] @ block[j]ᵀ + bias[j].

    One call instead of a split and several linear ones, because the tracer then sees the weight
    itself and not parts derived from it.

    Args:
        inputs: one for each block.
        weight: all blocks below each other, or one weight for each block.
        bias: all blocks after each other, or None.
        sizes: output features of each block.
    """
    tensors = tuple(t for t in (*inputs, *_as_tuple(weight), bias) if t is not None)
    if has_torch_function(tensors):
        found: tuple[Tensor, ...] = handle_torch_function(
            projections, tensors, inputs, weight, bias, sizes
        )
        return found
    blocks = weight.split(sizes) if isinstance(weight, Tensor) else _as_tuple(weight)
    biases = (None,) * len(sizes) if bias is None else bias.split(sizes)
    return tuple(F.linear(x, w, b) for x, w, b in zip(inputs, blocks, biases, strict=True))


def _as_tuple(weight: Tensor | tuple[Tensor | None, ...] | None) -> tuple[Tensor | None, ...]:
    return weight if isinstance(weight, tuple) else (weight,)


class Projections(ContactOp):
    """The per-example gradients of `projections`, block by block."""

    path = "projections"

    def __init__(
        self,
        contact: Contact,
        weight: Tensor | tuple[Tensor, ...],
        bias: Tensor | None,
        sizes: tuple[int, ...],
    ) -> None:
        super().__init__(contact)
        self.weight, self.bias, self.sizes = weight, bias, sizes
        blocks = weight.split(sizes) if isinstance(weight, Tensor) else weight
        self.trained = [block.requires_grad for block in blocks]
        self.blocks = tuple(block.detach() for block in blocks)

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        bias = None if self.bias is None else self.bias.detach()
        return projections(inputs, self.blocks, bias, self.sizes), inputs

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        grad_inputs: list[Tensor | None] = []
        slots: list[Slot] = []
        sums: list[Tensor] = []
        for j, (x, g, block) in enumerate(zip(saved, grads, self.blocks, strict=True)):
            g = x.new_zeros(*x.shape[:-1], len(block)) if g is None else g
            grad_inputs.append(g @ block if needs[j] else None)
            rows, grad_rows = self._rows(x, j), self._rows(g, j)
            if self.trained[j]:
                slots.append(outer(self.contact, rows, grad_rows))
            sums.append(Summed(grad_rows).written_out())
        if not isinstance(self.weight, Tensor):
            trained = (w for w in self.weight if w.requires_grad)
            self.slots += zip(trained, slots, strict=True)
        elif self.weight.requires_grad:
            self.slots.append((self.weight, Stacked(slots, self.sizes)))
        if self.bias is not None and self.bias.requires_grad:
            self.slots.append((self.bias, Materialised(torch.cat(sums, 1))))
        return tuple(grad_inputs)

    def _rows(self, tensor: Tensor, position: int) -> Tensor:
        """(B, T, features), whatever the layout."""
        contact = self.contact
        first = contact.input_layout(position).records_first(tensor, contact.records)
        return first.reshape(contact.records, -1, tensor.shape[-1])


class Stacked(Slot):
    """Gradients of a weight whose blocks of rows have slots of their own.

    Args:
        slots: of the blocks, from the top.
        sizes: rows of each block.
    """

    def __init__(self, slots: list[Slot], sizes: tuple[int, ...]) -> None:
        self.slots, self.sizes = slots, sizes

    def squared_norms(self) -> Tensor:
        return torch.stack([slot.squared_norms() for slot in self.slots]).sum(0)

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        blocks = out.view(sum(self.sizes), -1).split(self.sizes)
        for slot, block in zip(self.slots, blocks, strict=True):
            slot.add_(block.view(-1), factors, bad)

    def written_out(self) -> Tensor:
        return torch.cat([slot.written_out() for slot in self.slots], 1)

    def dots(self, weight: Tensor) -> Tensor:
        blocks = weight.split(self.sizes)
        pairs = zip(self.slots, blocks, strict=True)
        return torch.stack([slot.dots(block) for slot, block in pairs]).sum(0)


def packed_projections(contact: Contact) -> ContactOp | None:
    """Rule for `projections`; declines where a weight was made from records."""
    inputs, weight, bias, sizes = contact.args
    if len(contact.inputs) != len(inputs) or any(
        seen is not given for seen, given in zip(contact.inputs, inputs, strict=True)
    ):
        return None
    return Projections(contact, weight, bias, sizes)
