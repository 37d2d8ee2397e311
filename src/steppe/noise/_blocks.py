"""Normal variates in blocks: Box-Muller on a keystream, every value handed out once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from steppe.noise.limits import require_noise_std

# Some fifteen passes make a block, and two threads wait for each other after each: blocks of 2^20
# values take 30 % less time than blocks of 2^17. A block's radii take half its memory, which keeps
# it from being larger still.
BLOCK = 1 << 20
# What is left over is cut from blocks this large: a model of a few thousand weights should not hold
# megabytes of noise to come.
SPARE = 1 << 14

Keystream = Callable[[NDArray[np.uint8]], None]

_RADIUS_BITS = 64
_OFFSET = math.ldexp(1.0, -_RADIUS_BITS - 1)


class NormalBlocks:
    """Turns keystream into normal variates of one precision.

    Blocks are written straight into the destination. What is left over is cut from a small spare
    block, so a small request costs one multiplication and its share of a refill.

    A pair of words (a, b), read as signed integers of 64 and w bits, gives two values

        r cos θ, r sin θ   with   r = sqrt(−2 ln u),  u = |a| 2⁻⁶³ + 2⁻⁶⁵,  θ = 2π b 2⁻ʷ

    The radius takes 64 bits in single precision too: its smallest u decides how far the noise
    reaches, and a value that the noise cannot reach without a record gives that record away.
    The conversion to floating point keeps relative precision near |a| = 0, which is the tail.
    Values reach sqrt(130 ln 2) = 9.49; 2.3e-21 of the normal law lies beyond. u is never 0, because
    of the offset, and never 1, because the factor is one unit in the last place short of 2⁻⁶³.
    That shortness enlarges the variance by about one rounding error; logarithm, root and cosine
    have errors of that size in either direction.

    Guarantees:
        An exception at any moment, an interrupt included, can lose values but never hands a value
        out twice.

    Args:
        dtype: torch.float32 (w = 32) or torch.float64 (w = 64).
        keystream: Overwrites an array of bytes with fresh pseudorandom bytes.
    """

    def __init__(self, dtype: torch.dtype, keystream: Keystream) -> None:
        self._dtype, self._keystream = dtype, keystream
        with torch.inference_mode(False):  # it outlives the call, and so a mode of the caller
            self._spare = torch.empty(SPARE, dtype=dtype, device="cpu")
            self._spare_places = _Places(self._spare)
        turn_bits = torch.iinfo(self._spare_places.turns.dtype).bits
        shortened = math.ldexp(1.0 - torch.finfo(dtype).eps / 2, 1 - _RADIUS_BITS)
        self._scale, self._offset = _number(shortened, dtype), _number(_OFFSET, dtype)
        self._minus_two = _number(-2.0, dtype)
        self._turn = _number(math.ldexp(2.0 * math.pi, -turn_bits), dtype)
        self._used = SPARE
        self._std = 1.0, _number(1.0, dtype)  # asked for last, checked, and the same as a tensor

    def fill_(self, flat: torch.Tensor, std: float) -> None:
        """Overwrite a contiguous one-dimensional CPU tensor with N(0, std²) values."""
        if type(std) is not float or std != self._std[0]:
            checked = require_noise_std(std, self._dtype)
            self._std = checked, _number(checked, self._dtype)
        factor = self._std[1]
        # Words of 64 bits are made where the values will be, which takes an even address.
        total = flat.numel()
        whole = 0 if flat.storage_offset() % 2 else total - total % SPARE
        if whole:
            # For all blocks the same: new memory would cost as much as a pass over it.
            radii = self._radii(min(BLOCK, whole))
            for start in range(0, whole, BLOCK):
                self._make_(_Places(flat[start : min(start + BLOCK, whole)]), radii, factor)
        filled = whole
        while filled < total:
            if self._used == SPARE:
                self._make_(self._spare_places, self._radii(SPARE))
                self._used = 0
            first = self._used
            count = min(total - filled, SPARE - first)
            # Counted as used before they leave: see Guarantees.
            self._used = first + count
            into = flat if count == total else flat[filled : filled + count]
            torch.mul(self._spare[first : first + count], factor, out=into)
            filled += count

    def _radii(self, values: int) -> torch.Tensor:
        """Memory for the radii of so many values; not kept, since it would add to a step's peak."""
        return torch.empty(values // 2, dtype=self._dtype, device="cpu")

    def _make_(self, places: _Places, radii: torch.Tensor, std: torch.Tensor | None = None) -> None:
        """Overwrite a block with N(0, std²) values, or N(0, 1) without a std.

        The words lie in the block itself until the values take their place, so the radii are all
        the memory that is needed besides.
        """
        first, second = places.first, places.second
        self._keystream(places.word_bytes)
        radius = radii[: places.words.numel()].copy_(places.words)
        radius.abs_().mul_(self._scale).add_(self._offset)
        radius.log_().mul_(self._minus_two).sqrt_()
        if std is not None:  # after the root: std² could leave the range of float32
            radius.mul_(std)
        self._keystream(places.turn_bytes)
        first.copy_(places.turns).mul_(self._turn)
        torch.sin(first, out=second).mul_(radius)
        first.cos_().mul_(radius)


class _Places:
    """Where words and values lie in a block; kept for a block that is made again and again."""

    def __init__(self, out: torch.Tensor) -> None:
        half = out.numel() // 2
        self.first, self.second = out[:half], out[half:]
        single = out.dtype == torch.float32
        words = out if single else self.first
        self.words, self.word_bytes = words.view(torch.int64), _bytes(words)
        self.turns = self.second.view(torch.int32 if single else torch.int64)
        self.turn_bytes = _bytes(self.second)


def _number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A constant as a tensor without axes, in the type that it is used with.

    Torch would make one of a Python float in every call, and round one of another type in every
    call, to the same number; either takes longer than the arithmetic of a small block.
    """
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device="cpu")


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.detach().numpy().view(np.uint8)
