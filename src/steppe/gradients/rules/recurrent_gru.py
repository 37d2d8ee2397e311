"""The gated recurrent unit."""

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


class GRU(RecurrentCell):
    """n = tanh(n_x + σ(r)·n_h), h ← n + σ(z)·(h − n); the gates are stacked as r, z, n.

    The reset gate multiplies the recurrent part of n only, so the two products have different δ.
    """

    def forward(self, x: Tensor, start: States) -> Forward:
        (h_start,) = start
        width = h_start.shape[-1]
        gates = self.projected(x, self.b_ih)
        whole_h, h_before, h_after = self.states(x, width, h_start)
        hidden = torch.empty_like(h_after)  # the recurrent part of n, before the reset gate
        sums = gates.new_empty(gates.shape[1:])
        recurrent = self.w_hh.t()
        order = self.steps(len(x))
        for step in order:
            h, gate, n_hidden = h_before[step], gates[step], hidden[step]
            if step == order[0] and self.from_zero:
                sums.zero_() if self.b_hh is None else sums.copy_(self.b_hh.expand_as(sums))
            elif self.b_hh is None:
                torch.mm(h, recurrent, out=sums)
            else:
                plus_product(self.b_hh, h, recurrent, out=sums)
            r_z, n = gate[:, : 2 * width], gate[:, 2 * width :]
            r_z.add_(sums[:, : 2 * width]).sigmoid_()
            n_hidden.copy_(sums[:, 2 * width :])
            n.addcmul_(gate[:, :width], n_hidden).tanh_()
            torch.lerp(n, h, gate[:, width : 2 * width], out=h_after[step])
        return Forward(h_after, (h_after[order[-1]],), (whole_h, gates, hidden))

    def backward(
        self,
        saved: tuple[Tensor, ...],
        grad_output: Tensor,
        grad_last: States,
        need_start: bool,
        keep_products: bool,
    ) -> Backward:
        whole_h, to_input, hidden = saved
        width = hidden.shape[2]
        before = self.around(whole_h)[0]
        update = to_input[..., width : 2 * width].clone()
        to_hidden = self._factors(to_input, before, hidden)
        products = BackwardProducts(self, grad_output, grad_last[0], need_start, keep_products)
        by_input = to_input.view(*to_input.shape[:2], 3, width).unbind()
        by_hidden = to_hidden.view(*to_hidden.shape[:2], 3, width).unbind()
        for place, step in enumerate(products.order):
            grad_h = products.gradient.unsqueeze(1)
            by_input[step].mul_(grad_h)
            by_hidden[step].mul_(grad_h)
            products.move_past(place, to_hidden[step], update[step].mul_(products.gradient))
        return Backward(
            to_input=to_input,
            to_hidden=to_hidden,
            before=before,
            start=(products.gradient if need_start else None,),
            products=products.products,
        )

    @staticmethod
    def _factors(gates: Tensor, before: Tensor, hidden: Tensor) -> Tensor:
        """Turn each gate into ∂h/∂(its input sum), in place; return ∂h/∂(its recurrent sum)."""
        r, z, n = gates.view(*gates.shape[:2], 3, -1).unbind(2)
        to_hidden = torch.empty_like(gates)
        hidden_r, hidden_z, hidden_n = to_hidden.view(*gates.shape[:2], 3, -1).unbind(2)
        by_update = torch.ops.aten.sigmoid_backward(before - n, z)
        n.copy_(torch.ops.aten.tanh_backward(1 - z, n))
        z.copy_(by_update)
        torch.mul(n, r, out=hidden_n)
        r.copy_(torch.ops.aten.sigmoid_backward(n * hidden, r))
        hidden_r.copy_(r)
        hidden_z.copy_(z)
        return to_hidden
