"""Normalisation by channel: group and instance norm, and batch norm with fixed statistics.

All of them compute γ·x̂ + β. A record's dγ = Σ g·x̂ and dβ = Σ g have as few numbers as the layer
has channels, so they are written out during the backward pass and the activations can go.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.rules.arguments import named, only_input, only_shared
from steppe.gradients.slots.slot import Materialised, wide

_aten = torch.ops.aten


class Normalisation(ContactOp):
    """What all of them share: an affine part that keeps its per-example gradients.

    Args:
        contact: where it happens.
        weight, bias: γ and β; either may be missing or frozen.
    """

    def __init__(self, contact: Contact, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(contact)
        self.weight, self.bias = weight, bias
        self.gamma = None if weight is None else weight.detach()
        self.beta = None if bias is None else bias.detach()
        self.train_weight = weight is not None and weight.requires_grad
        self.train_bias = bias is not None and bias.requires_grad

    def keep(self, weight_gradient: Tensor | None, bias_gradient: Tensor | None) -> None:
        """Take the per-example gradients, `(B, anything)`, of those that are trained."""
        for tensor, gradient in ((self.weight, weight_gradient), (self.bias, bias_gradient)):
            if tensor is not None and tensor.requires_grad and gradient is not None:
                rows = wide(gradient).reshape(self.contact.records, *tensor.shape)
                self.slots.append((tensor, Materialised(rows)))


class ChannelNorm(Normalisation):
    """Layers on `(N, C, ...)` with one γ and β for each channel.

    The native backward pass sums dγ and dβ over N. Folding N into the channels, with γ repeated
    N times, makes it give them row by row, together with the input gradient and in the same time.
    """

    def keep_rows(self, weight_gradient: Tensor | None, bias_gradient: Tensor | None) -> None:
        """Take gradients with one row for each of the N rows of the input."""
        layout, records = self.contact.input_layout(), self.contact.records
        folded = [
            None if g is None or not g.numel() else layout.split(g, records).sum(1)
            for g in (weight_gradient, bias_gradient)
        ]
        self.keep(*folded)


class GroupNorm(ChannelNorm):
    """y = γ·(x − mean)/std + β with statistics over groups of channels, for each row."""

    path = "group norm"

    def __init__(
        self, contact: Contact, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
    ) -> None:
        super().__init__(contact, weight, bias)
        self.groups, self.eps = groups, eps

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (x,) = inputs
        rows, channels = x.shape[:2]
        # torch.group_norm keeps a channels-last input as it is and makes any other contiguous.
        last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        y, mean, rstd = _aten.native_group_norm(
            x if last else x.contiguous(),
            self.gamma,
            self.beta,
            rows,
            channels,
            x[0, 0].numel(),
            self.groups,
            self.eps,
        )
        return y, (x, mean, rstd)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (x, mean, rstd), (g,) = saved, grads
        if g is None:
            return (None,)
        rows, channels = x.shape[:2]
        grad_x, weight_gradient, bias_gradient = _aten.native_group_norm_backward(
            _folded(g),
            _folded(x),
            wide(mean).reshape(1, -1),
            wide(rstd).reshape(1, -1),
            None if self.gamma is None else wide(self.gamma).repeat(rows),
            1,
            rows * channels,
            x[0, 0].numel(),
            rows * self.groups,
            [needs[0], self.train_weight, self.train_bias],
        )
        self.keep_rows(
            weight_gradient.view(rows, channels) if self.train_weight else None,
            bias_gradient.view(rows, channels) if self.train_bias else None,
        )
        return (grad_x.view(x.shape).to(x.dtype) if needs[0] else None,)


class FixedOrInstanceNorm(ChannelNorm):
    """Batch norm by running statistics, and instance norm by those or by its own.

    Folded into one row of N·C channels, all three are the same operation.

    Args:
        contact: where it happens.
        weight, bias: γ and β.
        running: running mean and variance; None where each row's own statistics are used.
        eps: what is added to the variance.
    """

    path = "channel norm"

    def __init__(
        self,
        contact: Contact,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> None:
        super().__init__(contact, weight, bias)
        self.running, self.eps = running, eps

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (x,) = inputs
        if self.running is not None:
            mean, variance = self.running
            return F.batch_norm(x, mean, variance, self.gamma, self.beta, eps=self.eps), (x,)
        rows, channels = x.shape[:2]
        y, mean, rstd = _aten.native_batch_norm(
            x.contiguous().view(1, rows * channels, *x.shape[2:]),
            None if self.gamma is None else self.gamma.repeat(rows),
            None if self.beta is None else self.beta.repeat(rows),
            None,
            None,
            True,
            0.0,
            self.eps,
        )
        return y.view(x.shape), (x, mean, rstd)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (x, *own), (g,) = saved, grads
        if g is None:
            return (None,)
        rows, channels = x.shape[:2]
        mean, variance = (
            (wide(s).repeat(rows) for s in self.running) if self.running else (None,) * 2
        )
        grad_x, weight_gradient, bias_gradient = _aten.native_batch_norm_backward(
            _folded(g),
            _folded(x),
            None if self.gamma is None else wide(self.gamma).repeat(rows),
            mean,
            variance,
            wide(own[0]) if own else None,
            wide(own[1]) if own else None,
            not self.running,
            self.eps,
            [needs[0], self.train_weight, self.train_bias],
        )
        self.keep_rows(
            weight_gradient.view(rows, channels) if self.train_weight else None,
            bias_gradient.view(rows, channels) if self.train_bias else None,
        )
        return (grad_x.view(x.shape).to(x.dtype) if needs[0] else None,)


def _folded(tensor: Tensor) -> Tensor:
    """(N, C, ...) as one row of N·C channels.

    In memory too: torch's backward pass of group norm reads what it is given one number after the
    other, whatever the strides say. A gradient that a sum has spread out is a few numbers long.
    """
    return wide(tensor).reshape(1, tensor.shape[0] * tensor.shape[1], -1).contiguous()


def affine_only(contact: Contact, arguments: dict[str, Tensor | None]) -> bool:
    """Whether records enter as the input alone and weights as γ and β alone, without empty axes."""
    x = arguments["input"]
    return (
        only_input(contact, x)
        and only_shared(contact, arguments["weight"], arguments.get("bias"))
        and x is not None
        and x.numel() > 0
    )


def group_norm(contact: Contact) -> ContactOp | None:
    """Rule for `F.group_norm`."""
    call = named(contact, "input num_groups weight bias eps")
    if not affine_only(contact, call) or contact.input_layout().axis != 0:
        return None
    return GroupNorm(contact, call["weight"], call["bias"], call["num_groups"], call["eps"])


def batch_norm(contact: Contact) -> ContactOp | None:
    """Rule for `F.batch_norm`; refuses it in training mode, where it mixes the records."""
    call = named(contact, "input running_mean running_var weight bias training momentum eps")
    if call["training"] or call["running_mean"] is None:
        found, remedy = (
            "training=True",
            ", or call eval() on the layer to keep its own",
        )
        if call["running_mean"] is None:  # so that eval() changes nothing
            found, remedy = "track_running_stats=False", ""
        raise UnsupportedModelError(
            f"batch_norm {found}: must not normalise by the statistics of the batch, which make "
            "one record's output depend on the others; replace it with steppe.fix(model)"
            f"{remedy}."
        )
    if not affine_only(contact, call) or contact.input_layout().axis != 0:
        return None
    running = (call["running_mean"], call["running_var"])
    return FixedOrInstanceNorm(contact, call["weight"], call["bias"], running, call["eps"])


def instance_norm(contact: Contact) -> ContactOp | None:
    """Rule for `F.instance_norm`; refuses to update running statistics from records."""
    call = named(contact, "input running_mean running_var weight bias use_input_stats momentum eps")
    x, mean = call["input"], call["running_mean"]
    if call["use_input_stats"] and mean is not None:
        raise UnsupportedModelError(
            "instance_norm track_running_stats=True: must not store statistics of the records, "
            "which would be published without noise; build the layer with "
            "track_running_stats=False, or call eval() on it."
        )
    # A single position is an error that torch itself explains.
    spread = x.ndim > 2 and (mean is not None or x[0, 0].numel() > 1)
    if not spread or not affine_only(contact, call) or contact.input_layout().axis != 0:
        return None
    running = None if mean is None else (mean, call["running_var"])
    return FixedOrInstanceNorm(contact, call["weight"], call["bias"], running, call["eps"])
