"""Normalisation over the last axes: layer norm and RMS norm."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.rules.arguments import named
from steppe.gradients.rules.normalisation import Normalisation, affine_only
from steppe.gradients.slots.slot import wide

_aten = torch.ops.aten

# From this size on one native call for each record, which reads x and g once, beats element-wise
# operations on the whole batch, which do not fit the cache. Below it the calls cost more than that.
_LARGE_RECORD = 2**16


class LayerNorm(Normalisation):
    """y = γ·(x − mean)/std + β over the last axes; RMS norm is the case without mean and β."""

    path = "layer norm"

    def __init__(
        self,
        contact: Contact,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: list[int],
        eps: float | None,
        centred: bool,
    ) -> None:
        super().__init__(contact, weight, bias)
        self.shape, self.eps, self.centred = shape, eps, centred

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (x,) = inputs
        if not self.centred:
            y, rstd = _aten._fused_rms_norm(x, self.shape, self.gamma, self.eps)
            return y, (x, rstd)
        y, mean, rstd = _aten.native_layer_norm(x, self.shape, self.gamma, self.beta, self.eps)
        return y, (x, rstd, mean)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (x, rstd, *mean), (g,) = saved, grads
        if g is None:
            return (None,)
        grad_x = None
        if needs[0] and self.centred:
            grad_x = _aten.native_layer_norm_backward(
                g, x, self.shape, mean[0], rstd, self.gamma, self.beta, [True, False, False]
            )[0]
        elif needs[0]:
            grad_x = self._rms_input_gradient(x, g, rstd)
        rows = self._rows(g)
        self.keep(
            self._weight_gradient(x, rows, rstd, *mean) if self.train_weight else None,
            rows.sum(1) if self.train_bias else None,
        )
        return (grad_x,)

    def _rms_input_gradient(self, x: Tensor, g: Tensor, rstd: Tensor) -> Tensor:
        """The native backward pass of RMS norm does not exist on every device."""
        axes = tuple(range(-len(self.shape), 0))
        g = wide(g) if self.gamma is None else wide(g) * self.gamma
        unit = wide(x) * rstd
        along = (g * unit).mean(axes, keepdim=True)
        return g.addcmul(unit, along, value=-1).mul_(rstd).to(x.dtype)

    def _weight_gradient(
        self, x: Tensor, g: Tensor, rstd: Tensor, mean: Tensor | None = None
    ) -> Tensor:
        """Σₜ gₜ·x̂ₜ for every record."""
        x, rstd = self._rows(x), self._rows(rstd, 1)
        mean = None if mean is None else self._rows(mean, 1)
        if mean is not None and x[0].numel() >= _LARGE_RECORD:
            width = [x.shape[2]]
            one = (
                _aten.native_layer_norm_backward(
                    g[i],
                    x[i],
                    width,
                    mean[i],
                    rstd[i],
                    g.new_ones(width),
                    None,
                    [False, True, False],
                )[1]
                for i in range(len(x))
            )
            return torch.stack(list(one))
        # Subtracting the mean first costs a pass, but avoids cancellation of large means.
        product = x * g if mean is None else torch.sub(x, mean).mul_(g)
        return torch.bmm(rstd.mT, product)

    def _rows(self, tensor: Tensor, width: int | None = None) -> Tensor:
        """(B, T, features), whatever the layout."""
        contact = self.contact
        first = contact.input_layout().records_first(tensor, contact.records)
        width = width or self._width
        return wide(first).reshape(contact.records, -1, width)

    @property
    def _width(self) -> int:
        return int(torch.Size(self.shape).numel())


def layer_norm(contact: Contact) -> ContactOp | None:
    """Rule for `F.layer_norm`."""
    call = named(contact, "input normalized_shape weight bias eps")
    shape = list(call["normalized_shape"])
    if not affine_only(contact, call) or _normalises_records(contact, shape):
        return None
    return LayerNorm(contact, call["weight"], call["bias"], shape, call["eps"], centred=True)


def rms_norm(contact: Contact) -> ContactOp | None:
    """Rule for `F.rms_norm`."""
    call = named(contact, "input normalized_shape weight eps")
    shape = list(call["normalized_shape"])
    if not affine_only(contact, call) or _normalises_records(contact, shape):
        return None
    return LayerNorm(contact, call["weight"], None, shape, call["eps"], centred=False)


def _normalises_records(contact: Contact, shape: list[int]) -> bool:
    """Whether the record axis is one of those that are normalised over."""
    return contact.input_layout().axis >= contact.inputs[0].ndim - len(shape)
