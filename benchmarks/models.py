"""The networks that are measured: seven families, from logistic regression to a transformer.

Each is written as an ordinary user would write it, with torch's own layers. No in-place operations,
because one of the peers cannot run them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
    return nn.Sequential(
        *_conv_pair(3, 32, nn.Tanh),
        *_conv_pair(32, 64, nn.Tanh),
        *_conv_pair(64, 128, nn.Tanh),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 128),
        nn.Tanh(),
        nn.Linear(128, 10),
    )


def _conv_pair(inputs: int, outputs: int, activation: type[nn.Module]) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        activation(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
    ]


class _BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.GroupNorm(32, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def gn_resnet10() -> nn.Module:
    """Model c: a residual network with one block a stage on 1×28×28, 4,902,090 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
        _BasicBlock(64, 64, 1),
        _BasicBlock(64, 128, 2),
        _BasicBlock(128, 256, 2),
        _BasicBlock(256, 512, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


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


def logistic_regression() -> nn.Module:
    """Model e, first: 784 → 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


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


class ClassTokenAndPositions(nn.Module):
    """Bare parameters in a leaf of their own, so that every peer can find a rule for them."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, width))
        self.positions = nn.Parameter(torch.randn(tokens + 1, width) * 0.02)

    def forward(self, patches: Tensor) -> Tensor:
        first = self.class_token.expand(patches.shape[0], 1, -1)
        return torch.cat([first, patches], dim=1) + self.positions


class VisionTransformer(nn.Module):
    """Model g: patches of 4 on 3×32×32, width 192, depth 6, three heads, 2.7M parameters."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.tokens = ClassTokenAndPositions((32 // patch) ** 2, width)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width,
                    heads,
                    4 * width,
                    dropout=0.0,
                    activation=nn.functional.gelu,
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.tokens(self.patches(images).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(self.norm(self.blocks(tokens)[:, 0]))
        return logits
