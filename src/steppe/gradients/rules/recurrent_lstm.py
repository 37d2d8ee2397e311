"""The long short-term memory, with or without a projected output."""

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

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # ∂ · y(1 − y), in one pass
_tanh_backward = torch.ops.aten.tanh_backward.grad_input  # ∂ · (1 − y²), in one pass


class LSTM(RecurrentCell):
    """c ← σ(f)·c + σ(i)·tanh(g), h ← σ(o)·tanh(c); the gates are stacked as i, f, g, o."""

    def forward(self, x: Tensor, start: States) -> Forward:
        h_start, c_start = start
        width = c_start.shape[-1]
        gates = self.projected(x, self.both_biases())
        whole_h, h_before, h_after = self.states(x, h_start.shape[-1], h_start)
        whole_c, c_before, c_after = self.states(x, width, c_start)
        bent = torch.empty_like(c_after)  # tanh(c)
        # Without a projection the output is written to its final place.
        raw = h_after if self.w_hr is None else torch.empty_like(c_after)
        recurrent = self.w_hh.t()
        order = self.steps(len(x))
        # All views of all steps are made at once, because that saves time in the loop.
        views = zip(
            gates.unbind(), gates[..., : 2 * width].unbind(), *_parts(gates, width),
            h_before.unbind(), h_after.unbind(), c_before.unbind(), c_after.unbind(),
            bent.unbind(), raw.unbind(), strict=True,
        )  # fmt: skip
        steps = list(views)
        for step in order:
            all_, i_f, i, f, g, o, h, h_new, c, c_new, bent_, raw_ = steps[step]
            if step != order[0] or not self.from_zero:
                plus_product(all_, h, recurrent, out=all_)
            i_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c, out=c_new)
            c_new.addcmul_(i, g)
            torch.tanh(c_new, out=bent_)
            torch.mul(o, bent_, out=raw_)
            if self.w_hr is not None:
                torch.mm(raw_, self.w_hr.t(), out=h_new)
        last = order[-1]
        saved = (whole_h, gates, whole_c, bent)
        return Forward(h_after, (h_after[last], c_after[last]), saved)

    def backward(
        self,
        saved: tuple[Tensor, ...],
        grad_output: Tensor,
        grad_last: States,
        need_start: bool,
        keep_products: bool,
    ) -> Backward:
        whole_h, delta, whole_c, bent = saved
        width = bent.shape[2]
        raw = None if self.w_hr is None else delta[..., 3 * width :] * bent
        to_cell, forget = self._factors(delta, self.around(whole_c)[0], bent)
        grad_c = grad_last[1].clone()
        pulled = None if self.w_hr is None else torch.empty_like(grad_output)
        products = BackwardProducts(self, grad_output, grad_last[0], need_start, keep_products)
        stacked = delta.view(*delta.shape[:2], 4, width)
        by_cell, by_output = stacked[:, :, :3].unbind(), stacked[:, :, 3].unbind()
        deltas, to_cells, forgets = delta.unbind(), to_cell.unbind(), forget.unbind()
        for place, step in enumerate(products.order):
            grad_h = products.gradient
            if self.w_hr is not None and pulled is not None:
                pulled[step] = grad_h
                grad_h = grad_h @ self.w_hr
            grad_c.addcmul_(grad_h, to_cells[step])
            by_cell[step].mul_(grad_c.unsqueeze(1))
            by_output[step].mul_(grad_h)
            grad_c.mul_(forgets[step])
            products.move_past(place, deltas[step])
        return Backward(
            to_input=delta,
            to_hidden=delta,
            before=self.around(whole_h)[0],
            start=(products.gradient if need_start else None, grad_c),
            products=products.products,
            projection=None if raw is None or pulled is None else (raw, pulled),
        )

    @staticmethod
    def _factors(gates: Tensor, c_before: Tensor, bent: Tensor) -> tuple[Tensor, Tensor]:
        """Turn each gate into ∂(c or h)/∂(its sum), in place; return ∂h/∂c and the forget gate.

        The loop over time then only multiplies by the gradients of c and h.
        """
        i, f, g, o = gates.view(*gates.shape[:2], 4, -1).unbind(2)
        forget, candidate = f.clone(), g.clone()
        to_cell = torch.ops.aten.tanh_backward(o, bent)
        _sigmoid_backward(bent, o, grad_input=o)
        _sigmoid_backward(c_before, f, grad_input=f)
        _tanh_backward(i, candidate, grad_input=g)
        _sigmoid_backward(candidate, i, grad_input=i)
        return to_cell, forget


def _parts(gates: Tensor, width: int) -> list[tuple[Tensor, ...]]:
    """The gates one by one, each cut into steps."""
    return [part.unbind() for part in gates.view(*gates.shape[:2], -1, width).unbind(2)]
