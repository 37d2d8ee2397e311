"""The networks that are measured: seven families, from logistic regression to a transformer.

Each is written as an ordinary user would write it, with torch's own layers; those that the package
has itself come from there. No in-place operations, because one of the peers cannot run them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steppe import models
from steppe.models import VisionTransformer as VisionTransformer  # model g
from steppe.models import logistic_regression as logistic_regression  # model e, first

VOCABULARY = 10_004  # 10,000 words and four marks: padding, begin, end, unknown


def small_cnn() -> nn.Module:
    """Model a: four convolutions on 1×28×28, 0.2M parameters."""
    return nn.Sequential(
        *_conv_pair(1, 32, nn.ReLU),
        *_conv_pair(32, 64, nn.ReLU),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )


def cnn_tanh() -> nn.Module:
    """Model b: six convolutions on 3×32×32 with tanh, 550,570 parameters."""
    return models.cnn_tanh_cifar()


def _conv_pair(inputs: int, outputs: int, activation: type[nn.Module]) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        activation(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
    ]


def gn_resnet10() -> nn.Module:
    """Model c: a residual network with one block a stage on 1×28×28, 4,902,090 parameters."""
    return models.gn_resnet10(channels=1)


class _WideBlock(nn.Module):
    """ReLU → GroupNorm → convolution, twice; the skip is a 1×1 convolution where widths change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(16, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.norm2 = nn.GroupNorm(16, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip: nn.Module = nn.Identity()
        if inputs != outputs:
            self.skip = nn.Sequential(
                nn.ReLU(), nn.GroupNorm(16, inputs), nn.Conv2d(inputs, outputs, 1, stride=stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.norm1(torch.relu(x)))
        out = self.conv2(self.norm2(torch.relu(out)))
        return torch.add(out, self.skip(x))


def wide_resnet_16_4() -> nn.Module:
    """Model d: wide residual network 16-4 on 3×32×32, 2.7M parameters, without weight scaling."""
    blocks: list[nn.Module] = []
    width = 16
    for outputs, stride in ((64, 1), (128, 2), (256, 2)):
        blocks += [_WideBlock(width, outputs, stride), _WideBlock(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *blocks,
        nn.ReLU(),
        nn.GroupNorm(16, width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def mlp() -> nn.Module:
    """Model e, second: 784 → 512 → 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


class NextWordLSTM(nn.Module):
    """Model f: embedding 96, LSTM 670, two linear layers, one logit a word at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 96)
        self.lstm = nn.LSTM(96, 670, batch_first=True)
        self.projection = nn.Linear(670, 96)
        self.head = nn.Linear(96, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(words))
        logits: Tensor = self.head(self.projection(states))
        return logits
