"""The plain recurrent layer: h ← tanh or relu of one sum."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.gradients.rules.recurrent_cell import (
    Backward,
    Forward,
    RecurrentCell,
    States,
    Way,
    plus_product,
)


class TanhRNN(RecurrentCell):
    """h ← tanh(W_ih x + W_hh h + b)."""

    def forward(self, x: Tensor, start: States) -> Forward:
        (h_start,) = start
        sums = self.projected(x, self.both_biases())
        whole, before, after = self.states(x, h_start.shape[-1], h_start)
        recurrent = self.w_hh.t()
        order = self.steps(len(x))
        for step in order:
            if step != order[0] or not self.from_zero:
                plus_product(sums[step], before[step], recurrent, out=sums[step])
            self.bend(sums[step], after[step])
        return Forward(after, (after[order[-1]],), (whole,))

    def backward(
        self,
        saved: tuple[Tensor, ...],
        grad_output: Tensor,
        grad_last: States,
        need_start: bool,
        keep_products: bool,
    ) -> Backward:
        (whole,) = saved
        before, after = self.around(whole)
        delta = torch.empty_like(after)
        way = Way(self, grad_output, grad_last[0], need_start, keep_products)
        for place, step in enumerate(way.order):
            self.unbend(way.gradient, after[step], delta[step])
            way.pull(place, delta[step])
        start = way.gradient if need_start else None
        return Backward(delta, delta, before, (start,), way.products)

    @staticmethod
    def bend(sums: Tensor, out: Tensor) -> None:
        """Apply the nonlinearity."""
        torch.tanh(sums, out=out)

    @staticmethod
    def unbend(grad: Tensor, bent: Tensor, out: Tensor) -> None:
        """Pull a gradient back through the nonlinearity, given its result."""
        torch.ops.aten.tanh_backward.grad_input(grad, bent, grad_input=out)


class ReluRNN(TanhRNN):
    """h ← relu(W_ih x + W_hh h + b)."""

    @staticmethod
    def bend(sums: Tensor, out: Tensor) -> None:
        torch.clamp(sums, min=0, out=out)

    @staticmethod
    def unbend(grad: Tensor, bent: Tensor, out: Tensor) -> None:
        torch.ops.aten.threshold_backward.grad_input(grad, bent, 0, grad_input=out)
