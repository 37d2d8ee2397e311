"""A brightness common to all channels, with small deviations of each channel."""

from __future__ import annotations

from torch import Tensor

from steppe.procedural.draws import BlockGenerator

_COLOUR = 0.3  # spread of a channel around the common brightness, in spreads of that brightness


def tints(draws: BlockGenerator, *shape: int, channels: int, spread: float) -> Tensor:
    """Values (*shape, channels) around 0: strong common brightness, weak colour.

    Args:
        draws: the random numbers.
        shape: how many.
        channels: of a picture; one has no colour.
        spread: standard deviation of the brightness.
    """
    common = draws.normal(*shape, 1)
    if channels == 1:
        return common * spread
    # Half of the pictures' parts are nearly grey, some are vivid.
    vivid = draws.uniform(*shape, 1).square() * 2
    apart = draws.normal(*shape, channels)
    apart = apart - apart.mean(-1, keepdim=True)
    return spread * (common + _COLOUR * 2 * vivid * apart)
