"""The plain recurrent layer: h ← tanh or relu of one sum."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.gradients.rules.recurrent_cell import (
    Backward,
    BackwardProducts,
    Forward,
    RecurrentCell,
    States,
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
            self.activate_(sums[step], after[step])
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
        products = BackwardProducts(self, grad_output, grad_last[0], need_start, keep_products)
        for place, step in enumerate(products.order):
            self.activation_gradient_(products.gradient, after[step], delta[step])
            products.move_past(place, delta[step])
        start = products.gradient if need_start else None
        return Backward(delta, delta, before, (start,), products.products)

    @staticmethod
    def activate_(sums: Tensor, out: Tensor) -> None:
        """Apply the nonlinearity."""
        torch.tanh(sums, out=out)

    @staticmethod
    def activation_gradient_(grad: Tensor, output: Tensor, out: Tensor) -> None:
        """Pull a gradient back through the nonlinearity, given its result."""
        torch.ops.aten.tanh_backward.grad_input(grad, output, grad_input=out)


class ReluRNN(TanhRNN):
    """h ← relu(W_ih x + W_hh h + b)."""

    @staticmethod
    def activate_(sums: Tensor, out: Tensor) -> None:
        torch.clamp(sums, min=0, out=out)

    @staticmethod
    def activation_gradient_(grad: Tensor, output: Tensor, out: Tensor) -> None:
        torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=out)
