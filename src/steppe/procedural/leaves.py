"""Dead leaves: opaque shapes of all sizes that overlap.

The dead-leaves model (Lee, Mumford and Huang, "Occlusion models for natural images", 2001) explains
the edges, the flat regions and the scale invariance of natural pictures by occlusion: shapes with a
power law of sizes, each drawn over the earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.procedural.colour import tints
from steppe.procedural.draws import BlockGenerator
from steppe.procedural.noise_fields import fields

SHAPES = ("ellipse", "box", "triangle", "star")


@dataclass(frozen=True)
class Pile:
    """The distribution of the leaves in a group of pictures.

    Attributes:
        most: the largest number of leaves; numbers are log-uniform from 1.
        low: radius of the smallest leaf, in sides of the picture.
        high: radius of the largest one.
        reach: the largest distance of a leaf's centre from the middle, in sides of the picture.
        level: mean brightness of a leaf.
        spread: standard deviation of the brightness.
    """

    most: int
    low: float
    high: float
    reach: float
    level: float
    spread: float


# The smallest leaf is about four pixels wide at 32 × 32; some leaves are partly outside.
NATURAL = Pile(most=24, low=0.07, high=0.8, reach=0.6, level=0.5, spread=0.27)
ON_BLACK = Pile(most=6, low=0.1, high=0.45, reach=0.3, level=0.6, spread=0.22)


def cover(draws: BlockGenerator, pictures: Tensor, palettes: Tensor, pile: Pile) -> Tensor:
    """Draw leaves on pictures.

    Args:
        draws: the random numbers.
        pictures: (count, channels, size, size), the background.
        palettes: (count,), the number of the one shape of a picture's leaves in `SHAPES`; or
            `len(SHAPES)` for any shape.
        pile: the distribution of the leaves.

    Returns:
        New pictures.
    """
    count, channels, size = pictures.shape[:3]
    most = pile.most
    numbers = (draws.uniform(count, high=math.log(most + 1)).exp()).long().clamp_(1, most)
    # Pictures with more leaves first, so that those without a further leaf need no work.
    numbers, order = numbers.sort(descending=True, stable=True)
    found, palettes = pictures[order], palettes[order]
    exponents = draws.uniform(count, 1, low=1.05, high=2.6).expand(count, most)
    radius = draws.power_law(pile.low, pile.high, exponents)
    aspect = draws.uniform(count, most, low=-1.0).mul_(math.log(2.2)).exp_()
    centre = draws.uniform(count, most, 2, low=-pile.reach, high=pile.reach)
    turn = _turns(draws, count, most)
    shape = draws.choice(count, most, weights=(1.0,) * len(SHAPES))
    shape = torch.where(palettes[:, None] < len(SHAPES), palettes[:, None], shape)
    values = pile.level + tints(draws, count, most, channels=channels, spread=pile.spread)
    slope = draws.normal(count, most) * 0.12
    stripes = draws.chance(count, most, of=0.2) * draws.uniform(count, most, low=0.08, high=0.3)
    waves = draws.uniform(count, most, low=0.9, high=2.8)  # radians a pixel, of the stripes
    phase = draws.uniform(count, most, high=2 * math.pi)
    rough = draws.chance(count, most, of=0.5) * draws.uniform(count, most, low=0.02, high=0.15)
    textures = fields(draws, draws.uniform(count, low=0.2, high=1.4), 2, size)

    axis = (torch.arange(size) + 0.5) / size - 0.5
    for leaf in range(most):
        now = int((numbers > leaf).sum())
        if not now:
            break

        def column(values: Tensor, leaf: int = leaf, now: int = now) -> Tensor:
            return values[:now, leaf, None, None]

        down = axis[:, None] - column(centre[..., 0])
        right = axis[None, :] - column(centre[..., 1])
        cosine, sine = column(turn).cos(), column(turn).sin()
        u = (right * cosine + down * sine) / (column(radius) * column(aspect))
        v = (down * cosine - right * sine) * (column(aspect) / column(radius))
        inside = _inside(u, v, shape[:now, leaf], column(radius) * size)
        pixels = column(waves) * size * column(radius)  # of the stripes, in units of the leaf
        shade = column(slope) * u + column(rough) * textures[:now, leaf % 2]
        shade += column(stripes) * (u * pixels + column(phase)).sin_()
        value = values[:now, leaf, :, None, None] + shade[:, None]
        found[:now].lerp_(value, inside[:, None])
    return found[order.argsort()]


def _turns(draws: BlockGenerator, *shape: int) -> Tensor:
    """Angles of leaves; about half of them are nearly horizontal or vertical."""
    free = draws.uniform(*shape, high=2 * math.pi)
    upright = draws.choice(*shape, weights=(1.0,) * 4) * (math.pi / 2) + 0.08 * draws.normal(*shape)
    return torch.where(draws.chance(*shape, of=0.5) > 0, upright, free)


def _inside(u: Tensor, v: Tensor, shape: Tensor, pixels: Tensor) -> Tensor:
    """How much of each pixel a leaf covers, from 0 to 1, with an edge one pixel wide.

    Args:
        u: pixels of each leaf (leaves, size, size) along its first axis, 1 at its rim.
        v: along its second axis.
        shape: (leaves,), numbers in `SHAPES`.
        pixels: radius of each leaf in pixels, (leaves, 1, 1).
    """
    distance = torch.empty_like(u)
    for number, rim in enumerate((_ellipse, _box, _triangle, _star)):
        (chosen,) = (shape == number).nonzero(as_tuple=True)
        distance[chosen] = rim(u[chosen], v[chosen])
    return distance.mul_(-pixels).add_(0.5).clamp_(0, 1)


def _ellipse(u: Tensor, v: Tensor) -> Tensor:
    return (u.square() + v.square()).sqrt_().sub_(1)


def _box(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs()).sub_(0.85)


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    side = u.abs() * (math.sqrt(3) / 2)
    return torch.maximum(side - v / 2, v).sub_(0.6)


def _star(u: Tensor, v: Tensor) -> Tensor:
    radius = (u.square() + v.square()).sqrt_()
    return radius - (torch.atan2(v, u) * 5).cos_().mul_(0.3).add_(0.75)
