"""Wide residual networks as De et al. (2022) train them privately.

They differ from the usual ones in three ways: kernels are standardised, normalisation follows the
activation (ReLU → GroupNorm → convolution), and the first block of every group has a convolution in
its skip path, even where the shape does not change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.utils import validation

_GROUPS = 16
# Standard deviation of a unit normal that is cut at two standard deviations.
_CUT_DEVIATION = 0.87962566103423978


def wrn_16_4(channels: int = 3, classes: int = 10) -> nn.Module:
    """Depth 16, four times as wide: 2,753,818 parameters.

    Args:
        channels: of the images.
        classes: number of labels.
    """
    return _network(16, 4, channels, classes)


def wrn_28_10(channels: int = 3, classes: int = 10) -> nn.Module:
    """Depth 28, ten times as wide: 36,500,378 parameters.

    Args:
        channels: of the images.
        classes: number of labels.
    """
    return _network(28, 10, channels, classes)


class StandardisedConv2d(nn.Module):
    """A convolution whose kernels are centred and scaled before use, with a gain for each.

    Kernel k is used as gain·(W − mean) / √max(fan-in · variance, 1e-4), over its own entries. The
    image is padded as TensorFlow and JAX do with "SAME": the odd pixel goes to the lower right,
    where torch's own padding would shift a strided convolution by one.

    Args:
        inputs: channels in.
        outputs: channels out.
        kernel: edge of the kernel.
        stride: in both directions.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        self.gain = nn.Parameter(torch.ones(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight[0].numel()))

    def standardised(self) -> Tensor:
        """The kernels as they are used."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        spread = torch.clamp(variance * self.weight[0].numel(), min=1e-4)
        return (self.weight - mean) * (self.gain.view(-1, 1, 1, 1) * torch.rsqrt(spread))

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.weight.shape[-1]
        down, right = (_missing(size, kernel, self.stride) for size in x.shape[-2:])
        if down % 2 or right % 2:
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
            down = right = 0
        return F.conv2d(x, self.standardised(), self.bias, self.stride, (down // 2, right // 2))


class WideBlock(nn.Module):
    """ReLU → GroupNorm → convolution, twice, and a skip path beside it.

    Args:
        inputs: channels in.
        outputs: channels out.
        stride: of the first convolution and of the skip path.
        first: whether this is the first block of its group, with a convolution in the skip path.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, first: bool) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.ReLU(),
            nn.GroupNorm(_GROUPS, inputs),
            StandardisedConv2d(inputs, outputs, 3, stride),
            nn.ReLU(),
            nn.GroupNorm(_GROUPS, outputs),
            StandardisedConv2d(outputs, outputs, 3),
        )
        self.skip: nn.Module = nn.Identity()
        if first:
            self.skip = nn.Sequential(
                nn.ReLU(),
                nn.GroupNorm(_GROUPS, inputs),
                StandardisedConv2d(inputs, outputs, 1, stride),
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.residual(x), self.skip(x))


def _missing(size: int, kernel: int, stride: int) -> int:
    """Pixels to add so that the output has ⌈size / stride⌉."""
    return max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)


def _network(depth: int, widening: int, channels: int, classes: int) -> nn.Module:
    validation.positive_integer("channels", channels)
    validation.positive_integer("classes", classes)
    blocks: list[nn.Module] = []
    inputs = 16
    for group in range(3):
        outputs = 16 * widening * 2**group
        for position in range((depth - 4) // 6):
            first = position == 0
            blocks.append(WideBlock(inputs, outputs, 2 if first and group else 1, first))
            inputs = outputs
    head = nn.Linear(inputs, classes)
    deviation = 1 / math.sqrt(inputs) / _CUT_DEVIATION
    nn.init.trunc_normal_(head.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    nn.init.zeros_(head.bias)
    return nn.Sequential(
        StandardisedConv2d(channels, 16, 3),
        *blocks,
        nn.ReLU(),
        nn.GroupNorm(_GROUPS, inputs),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        head,
    )
