"""One direction of one recurrent layer: what LSTM, GRU and plain RNN have in common.

All tensors are time-major, `(T, N, features)`, so that one step is one contiguous block. The input
projection of all steps is one large product; only the recurrent product has to wait for the step
before it. The backward pass gives δ, the gradient of the gates before their nonlinearity: every
weight gradient of the layer is a sum over time of δ with something that is already there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.gradients.slots.slot import wide

States = tuple[Tensor, ...]


@dataclass(frozen=True)
class CellWeights:
    """The weights of one direction of one layer, as the model gave them.

    Args:
        w_ih, w_hh: input and recurrent weights, gates stacked along the first axis.
        b_ih, b_hh: the two biases, or None.
        w_hr: projection of the LSTM's output, or None.
    """

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None


@dataclass(frozen=True)
class Forward:
    """The result of a pass over the sequence: outputs `(T, N, R)`, last states, saved tensors."""

    output: Tensor
    last: States
    saved: tuple[Tensor, ...]


@dataclass(frozen=True)
class Backward:
    """The result of the backward pass through time.

    Args:
        to_input: δ that belongs to the input product, `(T, N, gates)`.
        to_hidden: δ that belongs to the recurrent product; often the same tensor.
        before: state that entered each step, `(T, N, R)`.
        start: gradients of the initial states; the first is None unless it was requested.
        products: δ W_hh of every step, `(T, N, R)`, if requested.
        projection: input and output gradient of the projection, if there is one.
    """

    to_input: Tensor
    to_hidden: Tensor
    before: Tensor
    start: tuple[Tensor | None, ...]
    products: Tensor | None = None
    projection: tuple[Tensor, Tensor] | None = None


class RecurrentCell(ABC):
    """One direction of one layer.

    Args:
        weights: its weights.
        reverse: whether time runs backwards.
        from_zero: whether the initial state is a constant zero, so that its product is known.
    """

    def __init__(self, weights: CellWeights, reverse: bool, from_zero: bool) -> None:
        self.w_ih, self.w_hh = wide(weights.w_ih.detach()), wide(weights.w_hh.detach())
        self.b_ih, self.b_hh, self.w_hr = (
            None if weight is None else wide(weight.detach())
            for weight in (weights.b_ih, weights.b_hh, weights.w_hr)
        )
        self.reverse, self.from_zero = reverse, from_zero

    @abstractmethod
    def forward(self, x: Tensor, start: States) -> Forward:
        """Run over the sequence `x` from the states `start`."""

    @abstractmethod
    def backward(
        self,
        saved: tuple[Tensor, ...],
        grad_output: Tensor,
        grad_last: States,
        need_start: bool,
        keep_products: bool,
    ) -> Backward:
        """The backward pass. Overwrites `saved`, so it can run only once."""

    def steps(self, length: int) -> range:
        """The steps in the order of this direction."""
        return range(length - 1, -1, -1) if self.reverse else range(length)

    def states(self, like: Tensor, width: int, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for a state at all T + 1 times: (whole, before each step, after each step)."""
        length = len(like)
        whole = like.new_empty(length + 1, like.shape[1], width)
        whole[length if self.reverse else 0] = first
        return whole, *self.around(whole)

    def around(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        """The state before each step and after it: two views of the same moments."""
        return (whole[1:], whole[:-1]) if self.reverse else (whole[:-1], whole[1:])

    def projected(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W_ihᵀ + bias for all steps at once, in fresh memory."""
        rows = x.reshape(-1, x.shape[2])
        weight = self.w_ih.t()
        flat = torch.mm(rows, weight) if bias is None else torch.addmm(bias, rows, weight)
        return flat.view(*x.shape[:2], -1)

    def both_biases(self) -> Tensor | None:
        """b_ih + b_hh, where they act on the same sum."""
        return None if self.b_ih is None or self.b_hh is None else self.b_ih + self.b_hh


# Products of so many records take up to a third less time with their factors in the other order. Of
# one record less they take twice as long that way, and of a few up to fifteen times.
_SWAPPED = (16, 32)


def plus_product(base: Tensor, rows: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
    """base + rows @ matrix; `out` may be the base."""
    if rows.shape[0] not in _SWAPPED:
        return torch.addmm(base, rows, matrix, out=out)
    return torch.add(base, torch.mm(matrix.t(), rows.t()).t(), out=out)


class BackwardProducts:
    """The recurrent product of the backward pass: dh of a step = its gradient + δ W_hh of the next.

    Args:
        cell: the direction that goes back.
        grad_output: gradient of the outputs, `(T, N, R)`.
        grad_last: gradient of the last state, `(N, R)`.
        need_start: whether the gradient of the initial state is needed.
        keep_products: whether δ W_hh is needed for every step.
    """

    def __init__(
        self,
        cell: RecurrentCell,
        grad_output: Tensor,
        grad_last: Tensor,
        need_start: bool,
        keep_products: bool,
    ) -> None:
        self.order = list(reversed(cell.steps(len(grad_output))))
        self.products = torch.zeros_like(grad_output) if keep_products else None
        self._weight = cell.w_hh
        self._grads = grad_output.unbind()
        self._last = self.order[-1]
        self._past_start = need_start or (keep_products and not cell.from_zero)
        self.gradient = self._grads[self.order[0]] + grad_last

    def move_past(self, place: int, delta: Tensor, direct: Tensor | None = None) -> None:
        """Move `gradient` past the step `order[place]`, whose hidden δ is given.

        `direct` is what reaches the state before without passing through the weight.
        """
        step = self.order[place]
        if step == self._last:
            if not self._past_start:
                return
            base = direct
        else:
            base = self._grads[self.order[place + 1]]
            base = base if direct is None else direct.add_(base)
        if self.products is not None:
            product = torch.mm(delta, self._weight, out=self.products[step])
            self.gradient = product.clone() if base is None else base + product
        elif base is None:
            self.gradient = torch.mm(delta, self._weight)
        else:
            self.gradient = plus_product(base, delta, self._weight)
