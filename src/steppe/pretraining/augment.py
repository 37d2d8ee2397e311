"""Random variants of pictures, from torch's global random state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_EDGE = 8  # a picture is padded by this part of its side


def crop_and_flip(pictures: Tensor) -> Tensor:
    """Shift each picture by up to an eighth of its side, mirrored at the edges; flip half of them.

    Args:
        pictures: (records, channels, height, width).

    Examples:
        >>> crop_and_flip(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """
    count, _, height, width = pictures.shape
    edge = max(1, height // _EDGE)
    padded = F.pad(pictures, (edge, edge, edge, edge), mode="reflect")
    top, left = torch.randint(2 * edge + 1, (2, count, 1), device=pictures.device)
    rows = top + torch.arange(height, device=pictures.device)
    columns = left + torch.arange(width, device=pictures.device)
    flipped = torch.rand(count, 1, device=pictures.device) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    which = torch.arange(count, device=pictures.device)
    # Indexing with three arrays around a slice puts the channels last.
    found = padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return found.permute(0, 3, 1, 2).contiguous()


def strong_view(pictures: Tensor) -> Tensor:
    """A random part of each picture, scaled to its size, perhaps flipped, in another light.

    The views of a contrastive loss: a part with 20 to 100 % of the area, then brightness, contrast
    and, for colours, saturation, each by up to 40 %.

    Args:
        pictures: (records, channels, height, width) in [0, 1].
    """
    count, channels = pictures.shape[:2]
    device = pictures.device
    side = torch.empty(count, device=device).uniform_(0.2, 1.0).sqrt()
    stretch = torch.empty(count, device=device).uniform_(-1, 1).mul(0.14).exp()
    wide, high = (side * stretch).clamp(max=1), (side / stretch).clamp(max=1)
    turn = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    shift = torch.empty(2, count, device=device).uniform_(-1, 1)
    grid = torch.zeros(count, 2, 3, device=device, dtype=pictures.dtype)
    grid[:, 0, 0], grid[:, 1, 1] = wide * turn, high
    grid[:, 0, 2], grid[:, 1, 2] = shift[0] * (1 - wide), shift[1] * (1 - high)
    found = F.grid_sample(
        pictures,
        F.affine_grid(grid, list(pictures.shape), align_corners=False),
        padding_mode="reflection",
        align_corners=False,
    )
    bright, contrast, colour = torch.empty(3, count, 1, 1, 1, device=device).uniform_(0.6, 1.4)
    found = found * bright
    mean = found.mean((1, 2, 3), keepdim=True)
    found = mean + contrast * (found - mean)
    if channels > 1:
        grey = found.mean(1, keepdim=True)
        found = grey + colour * (found - grey)
    return found.clamp(0, 1)
