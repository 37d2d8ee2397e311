"""Recurrent layers: `nn.LSTM`, `nn.GRU`, `nn.RNN` and their single-step cells.

Torch runs them in fused kernels that give no δ. Here the same sums run step by step in time-major
memory; see `recurrent_cell`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.kernel_choice import Candidate
from steppe.gradients.layout import RecordLayout
from steppe.gradients.rules.recurrent_call import (
    RecurrentCall,
    cell_call,
    cells_of,
    places_among,
    sequence_call,
    time_major_layout,
)
from steppe.gradients.rules.recurrent_cell import Backward, CellWeights, States
from steppe.gradients.slots.ghost_norms import cost
from steppe.gradients.slots.outer import Outer, Single, Summed
from steppe.gradients.slots.recurrent import Gram, InTime
from steppe.gradients.slots.slot import Materialised, OwnRows, Slot, wide, wide_dtype


def recurrent(contact: Contact) -> ContactOp | None:
    """Rule for `torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu`."""
    return _use(contact, sequence_call(contact))


def recurrent_cell(contact: Contact) -> ContactOp | None:
    """Rule for `torch.lstm_cell`, `gru_cell`, `rnn_tanh_cell` and `rnn_relu_cell`."""
    return _use(contact, cell_call(contact))


def _use(contact: Contact, call: RecurrentCall) -> ContactOp | None:
    """Decline where a record is the weight, and what torch itself will refuse."""
    placed = [place for place in places_among(call.roles, contact.inputs) if place is not None]
    odd_rank = call.x.ndim != (2 if call.single else 3)
    if len(placed) != len(contact.inputs) or odd_rank or 0 in call.x.shape:
        return None
    return Recurrent(contact, call)


class Recurrent(ContactOp):
    """A stack of recurrent layers, computed step by step, with δ kept for every step."""

    path = "recurrent"

    def __init__(self, contact: Contact, call: RecurrentCall) -> None:
        super().__init__(contact)
        self.call = call
        self.layout = time_major_layout(contact, call)
        self._cells = cells_of(call)
        self._layers = len(self._cells) // call.directions
        self._places = places_among(call.roles, contact.inputs)

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        call = self.call
        x, *start = (
            wide((t if place is None else inputs[place]).detach())
            for t, place in zip(call.roles, self._places, strict=True)
        )
        if call.single:
            x, start = x.unsqueeze(0), [state.unsqueeze(0) for state in start]
        layer = x.transpose(0, 1) if call.batch_first else x
        last: list[States] = []
        saved: list[Tensor | None] = []
        for number in range(self._layers):
            layer = layer.contiguous()
            outputs = []
            for place in self._directions(number):
                found = self._cells[place].forward(layer, tuple(s[place] for s in start))
                outputs.append(found.output)
                last.append(found.last)
                saved += found.saved
            mask = None
            output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
            if call.dropout and number + 1 < self._layers:
                mask = F.dropout(torch.ones_like(output), call.dropout)
                output = output * mask
            saved += [layer, mask]
            layer = output
        ends = [torch.stack(states).to(call.x.dtype) for states in zip(*last, strict=True)]
        if call.single:
            return (ends[0][0] if len(ends) == 1 else tuple(end[0] for end in ends)), tuple(saved)
        layer = layer.transpose(0, 1) if call.batch_first else layer
        return (layer.to(call.x.dtype), *ends), tuple(saved)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        call = self.call
        needed = [
            t.requires_grad if place is None else needs[place]
            for t, place in zip(call.roles, self._places, strict=True)
        ]
        grad, grad_last = self._arriving(saved, grads)
        grad_start: dict[int, tuple[Tensor | None, ...]] = {}
        size = len(saved) // self._layers
        grad_x: Tensor | None = None
        for number in reversed(range(self._layers)):
            *remembered, x, mask = saved[number * size : (number + 1) * size]
            if mask is not None:
                grad = grad * mask
            each = len(remembered) // call.directions
            grad_x = None
            for place, part in zip(
                self._directions(number), grad.chunk(call.directions, 2), strict=True
            ):
                cell, weights = self._cells[place], call.weights[place]
                back = cell.backward(
                    tuple(remembered[:each]),
                    part,
                    tuple(g[place] for g in grad_last),
                    need_start=any(needed[1:]),
                    keep_products=self.contact.want_dots and weights.w_hh.requires_grad,
                )
                del remembered[:each]
                grad_start[place] = back.start
                pulled = None
                dots_ask = self.contact.want_dots and weights.w_ih.requires_grad
                if number > 0 or needed[0] or dots_ask:
                    pulled = torch.mm(back.to_input.flatten(0, 1), cell.w_ih).view_as(x)
                    grad_x = pulled if grad_x is None else grad_x + pulled
                self._take(weights, x, back, pulled)
            if grad_x is not None:
                grad = grad_x
        starts = [grad_start[place] for place in range(len(self._cells))]
        return self._answers(needed, len(needs), grad_x, starts)

    def _directions(self, number: int) -> range:
        """The cells of one layer."""
        return range(number * self.call.directions, (number + 1) * self.call.directions)

    def _arriving(self, saved: tuple[Tensor, ...], grads: Gradients) -> tuple[Tensor, list[Tensor]]:
        """Gradient of the top layer's output, time-major, and of the last states."""
        call = self.call
        shapes = [tuple(state.shape) for state in call.start]
        length, rows = saved[-2].shape[:2]
        width = call.directions * call.start[0].shape[-1]
        blank = saved[-2].new_zeros
        last = [
            blank(shape) if grad is None else wide(grad)
            for shape, grad in zip(shapes, grads if call.single else grads[1:], strict=True)
        ]
        if call.single:
            return blank(length, rows, width), [grad.unsqueeze(0) for grad in last]
        if grads[0] is None:
            return blank(length, rows, width), last
        output = wide(grads[0])
        return (output.transpose(0, 1) if call.batch_first else output), last

    def _take(self, weights: CellWeights, x: Tensor, back: Backward, pulled: Tensor | None) -> None:
        """Make the slots of one direction of one layer."""
        contact = self.contact
        to_input = Gram(self._rows(back.to_input))
        same = back.to_hidden is back.to_input
        to_hidden = to_input if same else Gram(self._rows(back.to_hidden))
        for weight, gram, met, product in (
            (weights.w_ih, to_input, x, pulled),
            (weights.w_hh, to_hidden, back.before, back.products),
        ):
            if weight.requires_grad:
                rows = self._rows(met)
                dots = None
                if product is not None and product.dtype == wide_dtype(product):
                    # ⟨Σ δxᵀ, W⟩ = Σ ⟨x, Wᵀδ⟩, and Wᵀδ is at hand, unless in half precision.
                    dots = (self._rows(product) * rows).sum((1, 2))
                self.slots.append((weight, shared_outer(contact, rows, gram, dots)))
        if weights.w_hr is not None and weights.w_hr.requires_grad and back.projection is not None:
            met, delta = back.projection
            gram = Gram(self._rows(delta))
            self.slots.append((weights.w_hr, shared_outer(contact, self._rows(met), gram, None)))
        summed: dict[int, Summed] = {}
        for bias, gram in ((weights.b_ih, to_input), (weights.b_hh, to_hidden)):
            if bias is not None and bias.requires_grad:
                if id(gram) not in summed:
                    summed[id(gram)] = Summed(gram.delta)
                self.slots.append((bias, summed[id(gram)]))

    def _rows(self, tensor: Tensor) -> Tensor:
        """(B, T, features) of a time-major tensor; a record's several rows join its steps."""
        records = self.contact.records
        first = self.layout.records_first(tensor, records)
        return first.reshape(records, -1, tensor.shape[-1])

    def _answers(
        self,
        needed: list[bool],
        inputs: int,
        grad_x: Tensor | None,
        starts: list[tuple[Tensor | None, ...]],
    ) -> Gradients:
        """Gradients of the arguments: to autograd where made from records, else into slots."""
        call, records = self.call, self.contact.records
        found: list[Tensor | None] = [grad_x if needed[0] else None]
        if found[0] is not None and call.batch_first:
            found[0] = found[0].transpose(0, 1)
        for need, states in zip(needed[1:], zip(*starts, strict=True), strict=True):
            found.append(torch.stack([s for s in states if s is not None]) if need else None)
        answers: list[Tensor | None] = [None] * inputs
        for role, (tensor, gradient) in enumerate(zip(call.roles, found, strict=True)):
            if gradient is None:
                continue
            gradient = gradient[0] if call.single else gradient
            place = self._places[role]
            if place is not None:
                answers[place] = gradient.to(tensor.dtype)
            else:
                layout = RecordLayout(call.axis(role), self.layout.interleaved)
                own = layout.split(gradient, records)
                self.slots.append((tensor, OwnRows(layout, own, tuple(tensor.shape))))
        return tuple(answers)


def shared_outer(contact: Contact, x: Tensor, gram: Gram, dots: Tensor | None) -> Slot:
    """Σₜ δₜxₜᵀ by Gram matrices or written out, whichever is faster here.

    Args:
        contact: where it happens.
        x: what δ meets, `(B, T, d)`.
        gram: δ, shared with other weights.
        dots: ⟨Gᵢ, W⟩ where they are known already.
    """
    delta = gram.delta
    records, positions, inputs, outputs = *x.shape, delta.shape[2]
    if positions == 1:
        return Single(x[:, 0], delta[:, 0], dots)
    product = records * positions * inputs * outputs
    pairs, _ = cost(x, delta)
    candidates = {
        # A Gram matrix of its own: what the measurement times must not depend on who came first.
        "gram": Candidate(
            lambda: InTime(x, Gram(delta), dots), product + pairs, 8.0 * records * positions**2
        ),
        "kept": Candidate(
            lambda: Materialised(Outer(x, delta).written_out()),
            product + 2.0 * records * inputs * outputs,
            4.0 * records * inputs * outputs,
        ),
    }
    key = f"recurrent {inputs}->{outputs} T={positions}"
    slot = contact.kernels.pick(key, candidates, inputs * outputs, wide_dtype(x))
    if isinstance(slot, InTime):
        slot.gram = gram
    return slot
