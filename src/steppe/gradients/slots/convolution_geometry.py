"""What a convolution does, apart from the numbers: its gradients, patches and shifts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.gradients.slots.slot import wide_dtype


@dataclass(frozen=True)
class Geometry:
    """A convolution without bias, in any number of image axes.

    Args:
        kernel, stride, padding, dilation: one entry for each image axis.
        groups: into how many independent convolutions the channels fall.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def taps(self) -> int:
        """Pixels that one output position sees."""
        return math.prod(self.kernel)

    @property
    def pointwise(self) -> bool:
        """Whether every output position sees one pixel, and there is no padding."""
        return self.taps == 1 and not any(self.padding)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution itself."""
        none = [0] * len(self.kernel)
        return torch.convolution(
            x, weight, None, self.stride, self.padding, self.dilation, False, none, self.groups
        )

    def input_gradient(self, x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input."""
        mask = [True, False, False]
        if not self.pointwise or max(self.stride) == 1:
            return self._backward(x, g, weight, self.stride, self.groups, mask)[0]
        # Pixels between the strides get no gradient. Leaving them out of the convolution and
        # filling in zeros is several times faster than the library's own strided kernel.
        seen = x[self.strided(0)]
        dense = self._backward(seen, g, weight, (1,) * len(self.stride), self.groups, mask)[0]
        found = torch.zeros_like(x)
        found[self.strided(0)] = dense
        return found

    def weight_gradient(self, x: Tensor, g: Tensor, records: int = 1) -> Tensor:
        """The gradient of the weight, summed over the rows of `x` and `g`.

        Where records are folded into the channels, it is one gradient after the other.
        """
        groups, stride = self.groups * records, self.stride
        if self.pointwise and max(stride) > 1:
            # On images with channels last the library's own strided kernel writes where it should
            # not (torch 2.13, three channels and fewer), which ends the process sooner or later.
            x, stride = x[self.strided(0)].contiguous(), (1,) * len(stride)
        shape = (g.shape[1], x.shape[1] // groups, *self.kernel)
        weight = x.new_empty(shape)  # only its shape is read
        return self._backward(x, g, weight, stride, groups, [False, True, False])[1]

    def _backward(
        self,
        x: Tensor,
        g: Tensor,
        weight: Tensor,
        stride: tuple[int, ...],
        groups: int,
        mask: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        none = [0] * len(self.kernel)
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            g, x, weight, None, stride, self.padding, self.dilation, False, none, groups, mask
        )
        return found

    def strided(self, *phase: int) -> tuple[slice, ...]:
        """Index of the pixels that lie one stride apart, starting at `phase`."""
        starts = phase if len(phase) == len(self.stride) else phase * len(self.stride)
        steps = (slice(f, None, s) for f, s in zip(starts, self.stride, strict=True))
        return (slice(None), slice(None), *steps)

    def shifts(self, axis: int, phase: int, length: int, positions: int) -> list[int]:
        """How far each tap of the kernel looks along one axis, in steps of the stride.

        Args:
            axis: the image axis.
            phase: only the taps that fall on pixels phase, phase + stride, … count.
            length: pixels along the axis.
            positions: output positions along the axis.
        """
        stride = self.stride[axis]
        pixels = max(0, -(-(length - phase) // stride))
        taps = (t * self.dilation[axis] - self.padding[axis] for t in range(self.kernel[axis]))
        shifts = [(tap - phase) // stride for tap in taps if (tap - phase) % stride == 0]
        return [shift for shift in shifts if pixels and -positions < shift < pixels]


class ImagePatches:
    """What each output position sees, for a few images at a time, in memory that is used again.

    Fresh memory costs a page fault every 4 kB, which would take longer than the copy itself.

    Args:
        geometry: the convolution.
        x: images `(N, C, ...)`, for their form.
        positions: the output's image axes.
        images: how many at a time.
    """

    def __init__(
        self, geometry: Geometry, x: Tensor, positions: tuple[int, ...], images: int
    ) -> None:
        self.geometry = geometry
        sides = zip(x.shape[2:], geometry.padding, strict=True)
        shape = (images, x.shape[1], *(length + 2 * pad for length, pad in sides))
        self._direct = geometry.pointwise and max(geometry.stride) == 1
        if not self._direct:
            dtype = wide_dtype(x)
            self._padded = x.new_zeros(shape, dtype=dtype)
            self._patches = x.new_empty((*shape[:2], *geometry.kernel, *positions), dtype=dtype)

    def of(self, x: Tensor) -> Tensor:
        """`(n, C, *kernel, *positions)`, valid until the next call."""
        geometry = self.geometry
        axes = len(geometry.kernel)
        if self._direct:
            return x.unflatten(1, (-1, *[1] * axes))
        padded, patches = self._padded[: len(x)], self._patches[: len(x)]
        inside = padded
        for axis, pad in enumerate(geometry.padding):
            inside = inside.narrow(2 + axis, pad, x.shape[2 + axis])
        inside.copy_(x)
        for axis in range(axes):
            reach = geometry.dilation[axis] * (geometry.kernel[axis] - 1) + 1
            padded = padded.unfold(2 + axis, reach, geometry.stride[axis])
            padded = padded[..., :: geometry.dilation[axis]]
        order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
        return patches.copy_(padded.permute(order))
