"""Starts that several families share."""

from __future__ import annotations

import math

from torch import nn


def he_fan_out_(model: nn.Module) -> nn.Module:
    """Draw every convolution's kernel from N(0, 2 / (kernel area × output channels)), in place.

    The output channels count even where the convolution is grouped, as in the code of the papers.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            area = layer.kernel_size[0] * layer.kernel_size[1]
            nn.init.normal_(layer.weight, std=math.sqrt(2 / (area * layer.out_channels)))
    return model
