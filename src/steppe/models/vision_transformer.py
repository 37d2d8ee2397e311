"""A vision transformer small enough to train on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.utils import validation


class ClassTokenAndPositions(nn.Module):
    """Puts a learned token before the patches and adds a learned position to each.

    Bare parameters in a leaf of their own, so that libraries which work module by module can find a
    rule for them.

    Args:
        tokens: number of patches.
        width: numbers in a token.
    """

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, width))
        self.positions = nn.Parameter(torch.randn(tokens + 1, width) * 0.02)

    def forward(self, patches: Tensor) -> Tensor:
        first = self.class_token.expand(patches.shape[0], 1, -1)
        return torch.cat([first, patches], dim=1) + self.positions


class VisionTransformer(nn.Module):
    """Pre-norm transformer on image patches, without dropout: 2,693,578 parameters as it stands.

    Args:
        size: edge of the square images.
        channels: of the images.
        classes: number of labels.
        width: numbers in a token.
        depth: transformer blocks.
        heads: of attention; must divide `width`.
        patch: edge of a patch; must divide `size`.

    Examples:
        >>> VisionTransformer(width=16, depth=1, heads=2)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        size: int = 32,
        channels: int = 3,
        classes: int = 10,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        patch: int = 4,
    ) -> None:
        super().__init__()
        named = {"size": size, "channels": channels, "classes": classes}
        named |= {"width": width, "depth": depth, "heads": heads, "patch": patch}
        for name, value in named.items():
            validation.positive_integer(name, value)
        if size % patch:
            raise validation.fail("patch", patch, f"must divide size={size}", "choose a divisor")
        if width % heads:
            raise validation.fail("heads", heads, f"must divide width={width}", "choose a divisor")
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.tokens = ClassTokenAndPositions((size // patch) ** 2, width)
        self.blocks = nn.Sequential(*(_block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.tokens(self.patches(images).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(self.norm(self.blocks(tokens)[:, 0]))
        return logits


def _block(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True
    )
