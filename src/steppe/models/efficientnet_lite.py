"""EfficientNet-Lite0: a small network for pictures, with published ImageNet weights as a start.

Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, 2019; the Lite
variants have neither squeeze-and-excitation nor swish. Its batch normalisation has fixed
statistics, so that each record is treated alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.models.frozen_batch_norm import FrozenBatchNorm
from steppe.utils import validation

# Of each stage: blocks, kernel, stride, expansion, outputs.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _FEATURES, _EPS = 32, 1280, 1e-3
_CHANNELS = (1, 3)
_SMALLEST = 32


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ⌈size/stride⌉ pixels, with the odd pixel after the end."""

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of the padded input."""
        down, right = (
            max(-(-size // stride) * stride - stride + kernel - size, 0)
            for size, stride, kernel in zip(
                x.shape[-2:], self.stride, self.kernel_size, strict=True
            )
        )
        if down % 2 == 0 and right % 2 == 0:
            half = (down // 2, right // 2)
            return F.conv2d(x, self.weight, self.bias, self.stride, half, 1, self.groups)
        sides = (right // 2, right - right // 2, down // 2, down - down // 2)
        return F.conv2d(F.pad(x, sides), self.weight, self.bias, self.stride, 0, 1, self.groups)


class MobileBlock(nn.Module):
    """Widens by a 1×1 convolution, filters each channel, and narrows again; a shortcut around."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widen: int) -> None:
        super().__init__()
        width = inputs * widen
        layers: list[nn.Module] = []
        if widen != 1:
            layers += [SameConv2d(inputs, width, 1, bias=False), _norm(width), nn.ReLU6()]
        depthwise = SameConv2d(width, width, kernel, stride, groups=width, bias=False)
        layers += [depthwise, _norm(width), nn.ReLU6()]
        layers += [SameConv2d(width, outputs, 1, bias=False), _norm(outputs)]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return x + found if self.has_shortcut else found


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 on pictures in [0, 1]: 3,383,818 parameters, 4,652,008 with 1,000 classes.

    Args:
        channels: 1 for grey pictures, which are repeated, or 3.
        classes: number of labels.
        resolution: pixels along one side that the network sees; pictures of another size are
            resized. It was trained with 224; the cost grows with its square.
    """

    def __init__(self, channels: int = 3, classes: int = 10, resolution: int = 224) -> None:
        super().__init__()
        if channels not in _CHANNELS:
            raise validation.fail("channels", channels, "must be 1 or 3")
        validation.positive_integer("classes", classes)
        if validation.positive_integer("resolution", resolution) < _SMALLEST:
            raise validation.fail("resolution", resolution, f"must be at least {_SMALLEST}")
        self.resolution = resolution
        self.stem = nn.Sequential(SameConv2d(3, _STEM, 3, 2, bias=False), _norm(_STEM), nn.ReLU6())
        blocks: list[nn.Module] = []
        inputs = _STEM
        for count, kernel, stride, widen, outputs in _STAGES:
            for number in range(count):
                block = MobileBlock(inputs, outputs, kernel, stride if number == 0 else 1, widen)
                blocks.append(block)
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(
            SameConv2d(inputs, _FEATURES, 1, bias=False), _norm(_FEATURES), nn.ReLU6()
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(_FEATURES, classes)
        for module in self.modules():
            if isinstance(module, SameConv2d):  # keeps the scale, as no batch statistics do
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits of pictures (records, channels, height, width)."""
        x = self.last(self.blocks(self.stem(self._prepared(pictures))))
        found: Tensor = self.head(self.pool(x))
        return found

    def extra_repr(self) -> str:
        return f"resolution={self.resolution}"

    def _prepared(self, pictures: Tensor) -> Tensor:
        size = (self.resolution, self.resolution)
        if tuple(pictures.shape[-2:]) != size:
            pictures = F.interpolate(pictures, size, mode="bilinear", align_corners=False)
        if pictures.shape[1] == 1:
            pictures = torch.cat([pictures] * 3, dim=1)
        return (pictures - 127 / 255) * (255 / 128)


def _norm(channels: int) -> FrozenBatchNorm:
    return FrozenBatchNorm(channels, _EPS)
