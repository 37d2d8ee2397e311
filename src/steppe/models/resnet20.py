"""ResNet-20 of gradient embedding perturbation (Yu et al. 2021): thin, and norms without weights.

Where the width doubles, the shortcut has no weights either: it keeps every second pixel, normalises
and appends channels of zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steppe.models.initialisation import he_fan_out_
from steppe.utils import validation


def resnet20(channels: int = 3, classes: int = 10) -> nn.Module:
    """Three stages of three thin blocks: 268,346 parameters, 274,196 with 100 classes.

    Args:
        channels: of the images.
        classes: number of labels.
    """
    validation.positive_integer("channels", channels)
    validation.positive_integer("classes", classes)
    blocks: list[nn.Module] = []
    inputs = 16
    for width in (16, 32, 64):
        for _ in range(3):
            blocks.append(ThinBlock(inputs, width))
            inputs = width
    return he_fan_out_(
        nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False),
            _norm(16),
            nn.ReLU(),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, classes),
        )
    )


class ThinBlock(nn.Module):
    """Two 3×3 convolutions; a block that doubles the width also halves the image."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.grows = width != inputs
        stride = 2 if self.grows else 1
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = _norm(width)
        self.every_second = nn.Sequential(nn.AvgPool2d(1, stride=2), _norm(inputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.grows:
            x = self.every_second(x)
            x = torch.cat([x, torch.zeros_like(x)], dim=1)
        return torch.relu(out + x)


def _norm(width: int) -> nn.Module:
    return nn.GroupNorm(4, width, affine=False)
