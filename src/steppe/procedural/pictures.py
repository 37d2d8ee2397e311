"""Procedural pictures in blocks: the same for a seed, whatever the machine's threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.procedural.colour import tints
from steppe.procedural.draws import BlockGenerator
from steppe.procedural.leaves import NATURAL, ON_BLACK, SHAPES, cover
from steppe.procedural.noise_fields import background
from steppe.procedural.strokes import strokes
from steppe.utils import validation

PROCESSES = (*(f"leaves: {shape}" for shape in SHAPES), "leaves: mixed", "shapes", "strokes")
_SHAPES_ON_BLACK, _STROKES = PROCESSES.index("shapes"), PROCESSES.index("strokes")
_NATURAL = (0.13, 0.13, 0.13, 0.13, 0.48)
# Half of the grey pictures are bright on black; colour pictures resemble photographs.
_WEIGHTS = {True: (*_NATURAL, 0.5, 0.5), False: (*_NATURAL, 0.0, 0.0)}
_BLOCK = 256
_SIZES = (8, 256)


@dataclass(frozen=True)
class Procedural:
    """Pictures with their labels.

    Attributes:
        pictures: (count, channels, size, size), float32 in [0, 1].
        process: (count,), the index in `PROCESSES` of the process that drew a picture.
    """

    pictures: Tensor
    process: Tensor


def pictures(
    count: int, size: int = 32, channels: int = 3, seed: int = 0, *, progress: bool = False
) -> Tensor:
    """Pictures that a program draws, with the edges, textures and scales of natural ones.

    Args:
        count: how many.
        size: pixels along one side, 8 to 256.
        channels: 1 to 4. Half of the pictures of one channel are bright shapes or strokes on black.
        seed: the first pictures of a seed are the same for every count.
        progress: whether to show a progress bar in a terminal.

    Returns:
        (count, channels, size, size), float32 in [0, 1].

    Guarantees:
        Nothing but the arguments decides the pictures: no data set, no global random state.

    Examples:
        >>> pictures(2, size=16, channels=1).shape
        torch.Size([2, 1, 16, 16])
    """
    return pictures_with_labels(count, size, channels, seed, progress=progress).pictures


def pictures_with_labels(
    count: int, size: int = 32, channels: int = 3, seed: int = 0, *, progress: bool = False
) -> Procedural:
    """The same pictures, each with the process that drew it.

    Args:
        count: how many.
        size: pixels along one side, 8 to 256.
        channels: 1 to 4.
        seed: whole number.
        progress: whether to show a progress bar in a terminal.

    Examples:
        >>> drawn = pictures_with_labels(3, size=16)
        >>> all(PROCESSES[number].startswith("leaves") for number in drawn.process)
        True
    """
    from tqdm import tqdm

    validation.positive_integer("count", count)
    for name, value, low, high in (("size", size, *_SIZES), ("channels", channels, 1, 4)):
        if not low <= validation.positive_integer(name, value) <= high:
            raise validation.fail(name, value, f"must lie between {low} and {high}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise validation.fail("seed", seed, "must be a whole number")
    found = torch.empty(count, channels, size, size)
    labels = torch.empty(count, dtype=torch.long)
    starts = range(0, count, _BLOCK)
    for start in tqdm(starts, desc="pictures", disable=None if progress else True):
        block = _block(BlockGenerator(seed, start // _BLOCK), size, channels)
        here = slice(start, min(start + _BLOCK, count))
        found[here] = block.pictures[: here.stop - start]
        labels[here] = block.process[: here.stop - start]
    return Procedural(found, labels)


def _block(draws: BlockGenerator, size: int, channels: int) -> Procedural:
    """A whole block, so that a picture does not depend on the number of pictures."""
    process = draws.choice(_BLOCK, weights=_WEIGHTS[channels == 1])
    found = torch.empty(_BLOCK, channels, size, size)

    def fill(which: Tensor, draw: Callable[[Tensor], Tensor]) -> None:
        (chosen,) = which.nonzero(as_tuple=True)
        if len(chosen):
            found[chosen] = draw(process[chosen])

    fill(process < _SHAPES_ON_BLACK, lambda palettes: _natural(draws, palettes, size, channels))
    fill(process == _SHAPES_ON_BLACK, lambda labels: _shapes(draws, len(labels), size, channels))
    fill(process == _STROKES, lambda labels: strokes(draws, len(labels), size, channels))
    return Procedural(_photographed(draws, found), process)


def _natural(draws: BlockGenerator, palettes: Tensor, size: int, channels: int) -> Tensor:
    """Leaves in front of clouds, with random brightness and contrast."""
    count = len(palettes)
    level = draws.uniform(count, 1, 1, 1, low=0.25, high=0.75)
    spread = draws.uniform(count, 1, 1, 1, low=0.03, high=0.17)
    ground = level + tints(draws, count, channels=channels, spread=0.08)[..., None, None]
    ground = ground + spread * background(draws, count, size, channels)
    covered = cover(draws, ground, palettes, NATURAL)
    light = draws.uniform(count, 1, 1, 1, low=0.6, high=1.15)
    cast = tints(draws, count, channels=channels, spread=0.06)[..., None, None]
    return (covered - 0.5) * light + 0.5 + cast


def _shapes(draws: BlockGenerator, count: int, size: int, channels: int) -> Tensor:
    """A few large leaves around the middle, on black."""
    black = torch.zeros(count, channels, size, size)
    palettes = draws.choice(count, weights=(1.0,) * (len(SHAPES) + 1))
    return cover(draws, black, palettes, ON_BLACK)


def _photographed(draws: BlockGenerator, found: Tensor) -> Tensor:
    """Slightly blurred, with the noise of a sensor, in 256 steps from black to white."""
    count = len(found)
    side = draws.uniform(count, 1, 1, 1, low=0.0, high=0.25)
    for axis in (-2, -1):
        padded = F.pad(found, (0, 0, 1, 1) if axis == -2 else (1, 1, 0, 0), mode="replicate")
        size = found.shape[axis]
        around = padded.narrow(axis, 0, size) + padded.narrow(axis, 2, size)
        found = found + side * (around - 2 * found)
    grain = draws.uniform(count, 1, 1, 1, high=0.025)
    grained = found + grain * draws.normal(*found.shape) * (found.abs() > 0.01)
    return grained.clamp_(0, 1).mul_(255).round_().div_(255)
