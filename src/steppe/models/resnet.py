"""Residual networks for small images, with GroupNorm in place of BatchNorm.

The stem is one 3×3 convolution without a pool. GroupNorm has 32 groups and weights, which is what
replacing BatchNorm by `steppe.fix` or by Opacus' fixer gives.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steppe.utils import validation

_GROUPS = 32


def gn_resnet10(channels: int = 3, classes: int = 10) -> nn.Module:
    """One basic block a stage: 4,903,242 parameters, 4,902,090 on grey images.

    Args:
        channels: of the images.
        classes: number of labels.
    """
    return _network(BasicBlock, (1, 1, 1, 1), channels, classes)


def gn_resnet18(channels: int = 3, classes: int = 10) -> nn.Module:
    """Two basic blocks a stage: 11,173,962 parameters.

    Args:
        channels: of the images.
        classes: number of labels.
    """
    return _network(BasicBlock, (2, 2, 2, 2), channels, classes)


def gn_resnet50(channels: int = 3, classes: int = 10) -> nn.Module:
    """Three to six bottleneck blocks a stage: 23,520,842 parameters.

    Args:
        channels: of the images.
        classes: number of labels.
    """
    return _network(Bottleneck, (3, 4, 6, 3), channels, classes)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions, and the shortcut of `BasicBlock`."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.GroupNorm(_GROUPS, outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        out = torch.relu(self.norm2(self.conv2(out)))
        return torch.relu(self.norm3(self.conv3(out)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.GroupNorm(_GROUPS, outputs)
    )


def _network(
    block: type[BasicBlock] | type[Bottleneck],
    depths: tuple[int, ...],
    channels: int,
    classes: int,
) -> nn.Module:
    validation.positive_integer("channels", channels)
    validation.positive_integer("classes", classes)
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for position in range(depth):
            shrinks = stage > 0 and position == 0
            blocks.append(block(inputs, width, stride=2 if shrinks else 1))
            inputs = block.expansion * width
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, classes),
    )
