"""1/f noise: clouds and textures whose spectrum falls with a power of the frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.procedural.draws import BlockGenerator


def fields(draws: BlockGenerator, exponents: Tensor, per_picture: int, size: int) -> Tensor:
    """Noise of mean 0 and variance 1 in each field.

    Args:
        draws: the random numbers.
        exponents: (pictures,); the amplitude falls as frequency^−exponent.
        per_picture: how many fields share an exponent.
        size: pixels along one side.

    Returns:
        (pictures, per_picture, size, size).
    """
    # Cut from a larger field, so that opposite edges do not continue each other.
    whole = size + size // 2
    rows = torch.fft.fftfreq(whole)[:, None]
    columns = torch.fft.rfftfreq(whole)[None, :]
    frequency = (rows.square() + columns.square()).sqrt()
    frequency[0, 0] = 1.0
    amplitude = frequency ** -exponents[:, None, None]
    amplitude[:, 0, 0] = 0.0
    shape = (len(exponents), per_picture, whole, whole // 2 + 1)
    spectrum = torch.complex(draws.normal(*shape), draws.normal(*shape))
    found = torch.fft.irfft2(spectrum * amplitude[:, None], s=(whole, whole))
    found = found[..., :size, :size]
    centred = found - found.mean((-2, -1), keepdim=True)
    return centred / centred.square().mean((-2, -1), keepdim=True).sqrt().clamp_min(1e-6)


def background(draws: BlockGenerator, count: int, size: int, channels: int) -> Tensor:
    """Clouds with a slope of brightness: (count, channels, size, size) around 0, spread about 1."""
    exponents = draws.uniform(count, low=0.9, high=2.2)
    common = fields(draws, exponents, 1, size)
    if channels == 1:
        return common
    own = fields(draws, exponents, channels, size)
    vivid = draws.uniform(count, 1, 1, 1).square_().mul_(0.5)
    return common + vivid * own
