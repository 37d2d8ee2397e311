"""Lookups: `F.embedding` and `F.embedding_bag` with indices made from records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.rules.arguments import named, only_shared
from steppe.gradients.slots.embedding import BagMaximum, EmbeddingRows
from steppe.gradients.slots.slot import Slot

_MODES = {"sum": 0, "mean": 1, "max": 2}


class Embedding(ContactOp):
    """One row of the table for each index."""

    path = "embedding"

    def __init__(self, contact: Contact, weight: Tensor, padding: int | None) -> None:
        super().__init__(contact)
        self.weight, self.padding = weight, padding

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (indices,) = inputs
        return F.embedding(indices, self.weight.detach()), (indices,)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (indices,), (g,) = saved, grads
        if g is not None:
            contact, layout = self.contact, self.contact.input_layout()
            rows = layout.records_first(indices, contact.records).reshape(contact.records, -1)
            grad_rows = layout.records_first(g, contact.records).reshape(-1, g.shape[-1])
            each = torch.arange(contact.records, device=rows.device)
            records = each.repeat_interleave(rows.shape[1])
            slot = EmbeddingRows(
                grad_rows, rows.flatten(), records, contact.records, tuple(self.weight.shape)
            )
            if self.padding is not None:
                slot = slot.where(slot.indices != self.padding % len(self.weight))
            self.slots.append((self.weight, slot))
        return (None,)


class EmbeddingBag(ContactOp):
    """Sum, mean or maximum of the rows in each bag.

    A bag belongs to the record that owns its row of the output, so bags of any length, and several
    for each record, need nothing special.

    Args:
        contact: where it happens.
        call: the arguments of `F.embedding_bag` by name.
    """

    path = "embedding bag"

    def __init__(self, contact: Contact, call: dict[str, Any]) -> None:
        super().__init__(contact)
        self.weight: Tensor = call["weight"]
        self.mode = _MODES[call["mode"]]
        self.padding = -1 if call["padding_idx"] is None else call["padding_idx"] % len(self.weight)
        self.call = call

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        seen = {id(o): s for o, s in zip(self.contact.inputs, inputs, strict=True)}
        indices, offsets, scales = (
            seen.get(id(self.call[name]), self.call[name])
            for name in ("input", "offsets", "per_sample_weights")
        )
        if indices.ndim == 2:
            each = torch.arange(len(indices), dtype=indices.dtype, device=indices.device)
            offsets = each * indices.shape[1]
        flat = indices.reshape(-1)
        y, _, sizes, largest = torch.ops.aten._embedding_bag(
            self.weight.detach(),
            flat,
            offsets,
            False,
            self.mode,
            False,
            None if scales is None else scales.reshape(-1),
            self.call["include_last_offset"] and indices.ndim == 1,
            self.padding,
        )
        return y, (flat, offsets, scales, _bags(offsets, len(flat)), sizes, largest)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (indices, offsets, scales, bag, sizes, largest), (g,) = saved, grads
        nothing = tuple(None for _ in needs)
        if g is None:
            return nothing
        if self.mode == _MODES["max"]:
            self.slots.append((self.weight, self._picks(g, largest, sizes)))
            return nothing
        self.slots.append((self.weight, self._rows(g, indices, bag, sizes, scales)))
        if not any(needs):
            return nothing
        grad_scales = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            g, self.weight.detach(), indices, offsets, bag, self.mode, self.padding
        )
        return tuple(grad_scales.view(scales.shape) if need else None for need in needs)

    def _owners(self, bags: int) -> Tensor:
        """The record that owns each bag."""
        contact = self.contact
        owners = torch.empty(bags, dtype=torch.long, device=self.weight.device)
        rows = contact.output_layout().split(owners, contact.records)
        each = torch.arange(contact.records, device=owners.device)
        rows.copy_(each[:, None].expand_as(rows))
        return owners

    def _rows(
        self, g: Tensor, indices: Tensor, bag: Tensor, sizes: Tensor, scales: Tensor | None
    ) -> Slot:
        if self.mode == _MODES["mean"]:
            g = g / sizes.clamp(min=1)[:, None].to(g.dtype)
        slot = EmbeddingRows(
            g,
            indices,
            self._owners(len(g))[bag],
            self.contact.records,
            tuple(self.weight.shape),
            sources=bag,
            scales=None if scales is None else scales.detach().reshape(-1),
        )
        return slot if self.padding < 0 else slot.where(slot.indices != self.padding)

    def _picks(self, g: Tensor, largest: Tensor, sizes: Tensor) -> Slot:
        g = g * (sizes > 0)[:, None]  # an empty bag gives zeros that come from no row
        contact, layout = self.contact, self.contact.output_layout()
        largest, g = (
            layout.split(tensor, contact.records).reshape(contact.records, -1, g.shape[1])
            for tensor in (largest, g)
        )
        return BagMaximum(g, largest, tuple(self.weight.shape))


def _bags(offsets: Tensor, total: int) -> Tensor:
    """The bag of each index, where bag b begins at offsets[b]."""
    places = torch.arange(total, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets.contiguous(), places, right=True) - 1


def _check(call: dict[str, Any], name: str) -> None:
    """Reject the options that change weights in the forward pass or mix records."""
    reasons = {
        "max_norm": "must be None: it rewrites rows of the table with each batch, without noise; "
        "bound the weights after the step instead.",
        "scale_grad_by_freq": "must be False: it divides by counts over the whole batch, so one "
        "record's gradient depends on the others; leave it out.",
        "sparse": "must be False: private gradients carry noise in every row, so nothing about "
        "them is sparse; leave it out.",
    }
    for option, reason in reasons.items():
        if call[option] not in (None, False):
            raise UnsupportedModelError(f"{name} {option}={call[option]!r}: {reason}")


def embedding(contact: Contact) -> ContactOp | None:
    """Rule for `F.embedding`."""
    call = named(contact, "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse")
    _check(call, "embedding")
    return Embedding(contact, call["weight"], call["padding_idx"])


def embedding_bag(contact: Contact) -> ContactOp | None:
    """Rule for `F.embedding_bag`."""
    call = named(
        contact,
        "input weight offsets max_norm norm_type scale_grad_by_freq mode sparse "
        "per_sample_weights include_last_offset padding_idx",
    )
    _check(call, "embedding_bag")
    if not only_shared(contact, call["weight"]):
        raise UnsupportedModelError(
            "embedding_bag per_sample_weights=trained: must come from the records or be constant; "
            "write the bag as (F.embedding(indices, table) * weights[..., None]).sum(1)."
        )
    return EmbeddingBag(contact, call)
