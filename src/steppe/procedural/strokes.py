"""Thin bright strokes on black: curves of a few pixels' width, as of a pen."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.procedural.draws import BlockGenerator

_STROKES = 4  # at most
_POINTS = 7  # of the polygon that stands for a curve
_BLACK = 0.02


def strokes(draws: BlockGenerator, count: int, size: int, channels: int) -> Tensor:
    """Pictures with one to four curves: (count, channels, size, size).

    A curve is a cubic Bézier curve with its points around the middle; some are straight.
    """
    number = draws.choice(count, weights=(0.35, 0.35, 0.2, 0.1)) + 1
    ends = draws.uniform(count, _STROKES, 2, 2, low=-0.36, high=0.36)
    bends = draws.uniform(count, _STROKES, 2, 2, low=-0.5, high=0.5)
    straight = draws.chance(count, _STROKES, 1, 1, of=0.3) > 0
    thirds = torch.tensor([1 / 3, 2 / 3])[:, None]
    along = ends[:, :, :1] + thirds * (ends[:, :, 1:] - ends[:, :, :1])
    bends = torch.where(straight, along, bends)
    # The next stroke of some begins where the last one ended, as pens do.
    joined = draws.chance(count, _STROKES, of=0.5) > 0
    for stroke in range(1, _STROKES):
        before = torch.where(joined[:, stroke, None], ends[:, stroke - 1, 1], ends[:, stroke, 0])
        ends[:, stroke, 0] = before
    width = draws.uniform(count, 1, 1, low=0.016, high=0.06)  # half of it, in sides
    t = torch.linspace(0, 1, _POINTS)[:, None]
    start, stop = ends[:, :, :1], ends[:, :, 1:]
    first, second = bends[:, :, :1], bends[:, :, 1:]
    curve = (
        (1 - t) ** 3 * start
        + 3 * t * (1 - t) ** 2 * first
        + 3 * t**2 * (1 - t) * second
        + t**3 * stop
    )
    axis = (torch.arange(size) + 0.5) / size - 0.5
    nearest = torch.full((count, size, size), 4.0)
    for stroke in range(_STROKES):
        (chosen,) = (number > stroke).nonzero(as_tuple=True)
        for point in range(_POINTS - 1):
            piece = _distance(axis, curve[chosen, stroke, point], curve[chosen, stroke, point + 1])
            nearest[chosen] = torch.minimum(nearest[chosen], piece)
    inside = ((width - nearest) * size + 0.5).clamp_(0, 1)[:, None]
    bright = draws.uniform(count, channels, 1, 1, low=0.8, high=1.0)
    bright *= draws.uniform(count, 1, 1, 1, low=0.7, high=1.0)
    return _BLACK + inside * (bright - _BLACK)


def _distance(axis: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """Squared-free distance of all pixels to one segment a picture: (pictures, size, size)."""
    down = axis[None, :, None] - start[:, 0, None, None]
    right = axis[None, None, :] - start[:, 1, None, None]
    way = stop - start
    y, x = way[:, 0, None, None], way[:, 1, None, None]
    share = (down * y + right * x) / (y.square() + x.square()).clamp_min(1e-6)
    share.clamp_(0, 1)
    return ((down - share * y).square_() + (right - share * x).square_()).sqrt_()
