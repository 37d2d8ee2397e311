"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.rules.arguments import only_input
from steppe.gradients.rules.convolution_candidates import candidates
from steppe.gradients.slots.convolution_geometry import Geometry
from steppe.gradients.slots.slot import Materialised, Slot, wide_dtype

_PLAIN = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip


class Convolution(ContactOp):
    """y = W ∗ x + b, or its transpose.

    A transposed convolution is the same bilinear form with input and output exchanged, so its
    weight gradient is that of the plain one with x and g exchanged.

    Args:
        contact: where it happens.
        arguments: by name, as the model gave them.
        geometry: the plain convolution, with the padding that `margins` leaves.
        margins: zeros put before the input for `padding="same"` with even kernels, in the form of
            `torch.constant_pad_nd`; empty for none.
        transposed: whether it is the transpose.
    """

    path = "convolution"

    def __init__(
        self,
        contact: Contact,
        arguments: dict[str, Any],
        geometry: Geometry,
        margins: list[int],
        transposed: bool,
    ) -> None:
        super().__init__(contact)
        self.weight: Tensor = arguments["weight"]
        self.bias: Tensor | None = arguments.get("bias")
        self.geometry, self.margins, self.transposed = geometry, margins, transposed
        self._rest = {k: v for k, v in arguments.items() if k not in ("input", "weight", "bias")}

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (x,) = inputs
        bias = None if self.bias is None else self.bias.detach()
        return self.contact.function(x, self.weight.detach(), bias, **self._rest), (x,)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (x,), (g,) = saved, grads
        if g is None:
            return (None,)
        padded = torch.constant_pad_nd(x, self.margins) if self.margins else x
        grad = self._input_gradient(padded, g) if needs[0] else None
        if self.weight.requires_grad:
            self.slots.append((self.weight, self._weight_slot(padded, g, grad)))
        if self.bias is not None and self.bias.requires_grad:
            sums = self._records_first(g.flatten(2).sum(2, dtype=wide_dtype(g)), output=True)
            summed = sums.reshape(self.contact.records, -1, g.shape[1]).sum(1)
            self.slots.append((self.bias, Materialised(summed)))
        if grad is not None and self.margins:
            grad = torch.constant_pad_nd(grad, [-margin for margin in self.margins])
        return (grad,)

    def _input_gradient(self, x: Tensor, g: Tensor) -> Tensor:
        weight = self.weight.detach()
        if self.transposed:
            return self.geometry.apply(g, weight)
        return self.geometry.input_gradient(x, g, weight)

    def _weight_slot(self, x: Tensor, g: Tensor, grad: Tensor | None) -> Slot:
        contact, geometry = self.contact, self.geometry
        dots = None
        if contact.want_dots and grad is not None and grad.dtype == x.dtype == wide_dtype(x):
            # ⟨Gᵢ, W⟩ = ⟨xᵢ, gradient of xᵢ⟩, which was just computed. Half precision would be too
            # coarse for a term that may cancel all others.
            products = self._records_first(grad * x, output=False)
            dots = products.reshape(contact.records, -1).sum(1, dtype=wide_dtype(x))
        x, g = self._records_first(x, output=False), self._records_first(g, output=True)
        if self.transposed:
            x, g = g, x
        ways = candidates(x, g, geometry, contact.records, dots)
        return contact.kernels.pick(
            _key(x, g, geometry, contact.records), ways, self.weight.numel(), wide_dtype(x)
        )

    def _records_first(self, tensor: Tensor, output: bool) -> Tensor:
        """The same images, those of one record next to each other."""
        contact = self.contact
        layout = contact.output_layout() if output else contact.input_layout()
        return layout.split(tensor, contact.records).flatten(0, 1)


def _key(x: Tensor, g: Tensor, geometry: Geometry, records: int) -> str:
    def text(sizes: tuple[int, ...]) -> str:
        return "x".join(map(str, sizes))

    parts = [f"conv {x.shape[1]}->{g.shape[1]}", text(geometry.kernel)]
    parts.append(f"on {text(tuple(x.shape[2:]))}->{text(tuple(g.shape[2:]))}")
    parts.append(f"stride {text(geometry.stride)}")
    for name, value, usual in (
        ("dilation", text(geometry.dilation), text((1,) * len(geometry.kernel))),
        ("groups", str(geometry.groups), "1"),
        ("images", str(x.shape[0] // records), "1"),
    ):
        if value != usual:
            parts.append(f"{name} {value}")
    return " ".join(parts)


def convolution(contact: Contact) -> ContactOp | None:
    """Rule for `F.conv1d`, `F.conv2d` and `F.conv3d`."""
    arguments = dict(zip(_PLAIN, contact.args, strict=False)) | contact.kwargs
    if not _images(contact, arguments):
        return None
    kernel = tuple(arguments["weight"].shape[2:])
    stride, dilation = (_each(arguments.get(name, 1), kernel) for name in ("stride", "dilation"))
    padding = arguments.get("padding", 0)
    margins: list[int] = []
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = tuple(total // 2 for total in totals)
        # An odd total leaves one more zero at the end, as torch does it.
        if any(total % 2 for total in totals):
            margins = [side for total in reversed(totals) for side in (0, total % 2)]
    elif padding == "valid":
        pads = (0,) * len(kernel)
    else:
        pads = _each(padding, kernel)
    geometry = Geometry(kernel, stride, pads, dilation, int(arguments.get("groups", 1)))
    return Convolution(contact, arguments, geometry, margins, transposed=False)


def transposed_convolution(contact: Contact) -> ContactOp | None:
    """Rule for `F.conv_transpose1d`, `F.conv_transpose2d` and `F.conv_transpose3d`."""
    arguments = dict(zip(_TRANSPOSED, contact.args, strict=False)) | contact.kwargs
    if not _images(contact, arguments):
        return None
    kernel = tuple(arguments["weight"].shape[2:])
    stride, dilation = (_each(arguments.get(name, 1), kernel) for name in ("stride", "dilation"))
    extra = _each(arguments.get("output_padding", 0), kernel)
    if any(e >= s for e, s in zip(extra, stride, strict=True)):
        return None  # the plain convolution would then have more positions than the input
    padding = _each(arguments.get("padding", 0), kernel)
    geometry = Geometry(kernel, stride, padding, dilation, int(arguments.get("groups", 1)))
    return Convolution(contact, arguments, geometry, [], transposed=True)


def _images(contact: Contact, arguments: dict[str, Any]) -> bool:
    """Whether records are images with an axis of their own, and weights are weights."""
    x, weight = arguments.get("input"), arguments.get("weight")
    if x is None or not only_input(contact, x) or not isinstance(weight, Tensor):
        return False
    layouts = (contact.input_layout(), contact.output_layout())
    return (
        x.ndim == weight.ndim
        and all(layout.axis == 0 for layout in layouts)
        and contact.records > 0
        and x.shape[0] % contact.records == 0
    )


def _each(value: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """One entry for each image axis: torch accepts a number or a single entry for all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return tuple(int(v) for v in (values * len(kernel) if len(values) == 1 else values))
