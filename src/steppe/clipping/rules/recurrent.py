"""Recurrent layers: `nn.LSTM`, `nn.GRU`, `nn.RNN` and their single-step cells.

Torch runs them in fused kernels that give no δ. Here the same sums run step by step in time-major
memory; see `recurrent_cell`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.clipping.layout import Layout
from steppe.clipping.rules.fallback import _InRows
from steppe.clipping.rules.recurrent_cell import Backward, Cell, States, Weights
from steppe.clipping.rules.recurrent_gru import GRU
from steppe.clipping.rules.recurrent_lstm import LSTM
from steppe.clipping.rules.recurrent_plain import ReluRNN, TanhRNN
from steppe.clipping.rules.recurrent_slots import Gram, shared_outer
from steppe.clipping.slots import Summed
from steppe.clipping.tracing import Contact, Gradients, Output, Use, is_marked
from steppe.errors import UnsupportedModelError


@dataclass(frozen=True)
class Call:
    """One call of a recurrent function, whatever its signature.

    Args:
        kind: LSTM, GRU or one of the plain ones.
        x: the input as given: `(T, N, I)`, `(N, T, I)` or, for a single-step cell, `(N, I)`.
        start: the initial states as given, `(layers · directions, N, ·)` or `(N, ·)`.
        weights: one entry for each layer and direction, directions innermost.
        directions: 1 or 2.
        dropout: probability between layers; 0 outside training.
        batch_first: whether records come before time in `x`.
        single: whether this is a single-step cell.
    """

    kind: type[Cell]
    x: Tensor
    start: States
    weights: list[Weights]
    directions: int = 1
    dropout: float = 0.0
    batch_first: bool = False
    single: bool = False

    @property
    def roles(self) -> States:
        """The arguments that are not weights."""
        return (self.x, *self.start)

    def axis(self, role: int) -> int:
        """The axis of records in the given argument."""
        return 0 if self.single or (role == 0 and self.batch_first) else 1


class Recurrent(Use):
    """A stack of recurrent layers, computed step by step, with δ kept for every step."""

    path = "recurrent"

    def __init__(self, contact: Contact, call: Call) -> None:
        super().__init__(contact)
        self.call = call
        self.layout = _layout(contact, call)
        self._cells = _cells(call)
        self._layers = len(self._cells) // call.directions
        self._places = _places(call.roles, contact.inputs)

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        call = self.call
        x, *start = (
            _wide((t if place is None else inputs[place]).detach())
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

    def _arriving(
        self, saved: tuple[Tensor, ...], grads: Gradients
    ) -> tuple[Tensor, list[Tensor]]:
        """Gradient of the top layer's output, time-major, and of the last states."""
        call = self.call
        shapes = [tuple(state.shape) for state in call.start]
        length, rows = saved[-2].shape[:2]
        width = call.directions * call.start[0].shape[-1]
        blank = saved[-2].new_zeros
        last = [
            blank(shape) if grad is None else _wide(grad)
            for shape, grad in zip(shapes, grads if call.single else grads[1:], strict=True)
        ]
        if call.single:
            return blank(length, rows, width), [grad.unsqueeze(0) for grad in last]
        if grads[0] is None:
            return blank(length, rows, width), last
        output = _wide(grads[0])
        return (output.transpose(0, 1) if call.batch_first else output), last

    def _take(self, weights: Weights, x: Tensor, back: Backward, pulled: Tensor | None) -> None:
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
                # ⟨Σ δxᵀ, W⟩ = Σ ⟨x, Wᵀδ⟩, and Wᵀδ is at hand.
                dots = None if product is None else (self._rows(product) * rows).sum((1, 2))
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
                layout = Layout(call.axis(role), self.layout.interleaved)
                own = layout.split(gradient, records)
                self.slots.append((tensor, _InRows(layout, own, tuple(tensor.shape))))
        return tuple(answers)


def _places(roles: States, inputs: Sequence[Tensor]) -> list[int | None]:
    """For each argument its place among the inputs made from records; None for the others."""
    free = list(range(len(inputs)))
    places: list[int | None] = []
    for tensor in roles:
        place = next((i for i in free if inputs[i] is tensor), None)
        if place is not None:
            free.remove(place)
        places.append(place)
    return places


def _layout(contact: Contact, call: Call) -> Layout:
    """Where the records lie in time-major tensors; refuses where time and records are mixed."""
    interleaved = False
    for role, tensor in enumerate(call.roles):
        axis = call.axis(role)
        if tensor.shape[axis] % contact.records:
            raise UnsupportedModelError(
                f"{contact.name} batch axis={tensor.shape[axis]} rows: must be a multiple of the "
                f"{contact.records} records; check batch_first, and give a batched (3-D) input."
            )
        place = _places(call.roles, contact.inputs)[role]
        if place is None:
            continue
        layout = contact.input_layout(place)
        if contact.layouts is not None and layout.axis != axis:
            raise UnsupportedModelError(
                f"{contact.name} record axis={layout.axis}: must be {axis}, or the layer would "
                "carry its state from one record to the next; set batch_first to match the input."
            )
        interleaved = interleaved or layout.interleaved
    return Layout(axis=1, interleaved=interleaved)


def _cells(call: Call) -> list[Cell]:
    """One cell for each layer and direction."""
    h_start = call.start[0]
    constant = not is_marked(h_start) and not h_start.requires_grad
    from_zero = constant and not bool(h_start.any())
    return [
        call.kind(weights, reverse=bool(place % call.directions), from_zero=from_zero)
        for place, weights in enumerate(call.weights)
    ]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


_KINDS: dict[str, type[Cell]] = {
    "lstm": LSTM,
    "gru": GRU,
    "rnn_tanh": TanhRNN,
    "rnn_relu": ReluRNN,
}
_SEQUENCE = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train",
             "bidirectional", "batch_first")  # fmt: skip
_CELL = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")


def recurrent(contact: Contact) -> Use | None:
    """Rule for `torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu`; declines where weights are records.

    Packed sequences are refused: their rows belong to different records at every step.
    """
    given = dict(zip(_SEQUENCE, contact.args, strict=False)) | contact.kwargs
    second = given.get("batch_sizes", given.get("hx"))
    if isinstance(second, Tensor) and not second.is_floating_point():
        raise UnsupportedModelError(
            f"{contact.name} input=PackedSequence: must be a padded tensor, so that every record "
            "keeps a row of its own; use the padded batch and mask the loss behind each record's "
            "end."
        )
    hx, x = given["hx"], given["input"]
    start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    weights = _grouped(contact.name, given["params"], bool(given["has_biases"]), start)
    call = Call(
        _KINDS[contact.name],
        x,
        start,
        weights,
        directions=2 if given["bidirectional"] else 1,
        dropout=float(given["dropout"]) if given["train"] else 0.0,
        batch_first=bool(given["batch_first"]),
    )
    return _use(contact, call)


def recurrent_cell(contact: Contact) -> Use | None:
    """Rule for `torch.lstm_cell`, `gru_cell` and the plain cells: a sequence of one step."""
    given = dict(zip(_CELL, contact.args, strict=False)) | contact.kwargs
    hx = given["hx"]
    start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    weights = Weights(given["w_ih"], given["w_hh"], given.get("b_ih"), given.get("b_hh"))
    kind = _KINDS[contact.name.removesuffix("_cell")]
    return _use(contact, Call(kind, given["input"], start, [weights], single=True))


def _use(contact: Contact, call: Call) -> Use | None:
    placed = [place for place in _places(call.roles, contact.inputs) if place is not None]
    odd_rank = call.x.ndim != (2 if call.single else 3)
    if len(placed) != len(contact.inputs) or odd_rank or 0 in call.x.shape:
        return None
    return Recurrent(contact, call)


def _grouped(name: str, flat: Sequence[Tensor], biases: bool, start: States) -> list[Weights]:
    """The flat list of weights, by layer and direction."""
    projected = name == "lstm" and start[0].shape[-1] != start[1].shape[-1]
    size = 2 + 2 * biases + projected
    groups = [list(flat[i : i + size]) for i in range(0, len(flat), size)]
    found = []
    for group in groups:
        w_hr = group.pop() if projected else None
        found.append(Weights(*group, w_hr=w_hr))
    return found
