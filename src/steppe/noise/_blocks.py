"""Normal variates in blocks: Box-Muller on a keystream, every value handed out once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

# 2^17 values: each half is just large enough for torch to use two threads, and the words, the
# radii and the result of one block stay near a core's second-level cache.
BLOCK = 1 << 17
# What is left over is cut from blocks this large: a model of a few thousand weights should not hold
# megabytes of noise to come.
SPARE = 1 << 15

Keystream = Callable[[NDArray[np.uint8]], None]

_RADIUS_BITS = 64


class NormalBlocks:
    """Turns keystream into normal variates of one precision.

    Whole blocks are written straight into the destination. What is left over is cut from a
    small spare block, so a small request costs one multiplication and its share of a refill.

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
        with torch.inference_mode(False):
            self._spare = torch.empty(SPARE, dtype=dtype, device="cpu")
        self._used = SPARE

    def fill_(self, flat: torch.Tensor, std: float) -> None:
        """Overwrite a contiguous one-dimensional CPU tensor with N(0, std²) values."""
        whole = flat.numel() - flat.numel() % BLOCK
        if whole:
            maker = _Maker(BLOCK, self._dtype, self._keystream)
            for start in range(0, whole, BLOCK):
                maker.make_(flat[start : start + BLOCK], std)
        filled = whole
        while filled < flat.numel():
            if self._used == SPARE:
                _Maker(SPARE, self._dtype, self._keystream).make_(self._spare, 1.0)
                self._used = 0
            first = self._used
            count = min(flat.numel() - filled, SPARE - first)
            # Counted as used before they leave: see Guarantees.
            self._used = first + count
            torch.mul(self._spare[first : first + count], std, out=flat[filled : filled + count])
            filled += count


class _Maker:
    """Makes blocks of one size, with the buffers that this takes.

    It lives as long as one call: a step that is busy with activations should not hold them too.
    """

    def __init__(self, size: int, dtype: torch.dtype, keystream: Keystream) -> None:
        self._keystream, self._half = keystream, size // 2
        turns = np.dtype(np.int32 if dtype == torch.float32 else np.int64)
        border = self._half * _RADIUS_BITS // 8
        self._bytes: NDArray[np.uint8] = np.empty(
            border + self._half * turns.itemsize, dtype=np.uint8
        )
        self._scale = math.ldexp(1.0 - torch.finfo(dtype).eps / 2, 1 - _RADIUS_BITS)
        self._offset = math.ldexp(1.0, -_RADIUS_BITS - 1)
        self._turn = math.ldexp(2.0 * math.pi, -8 * turns.itemsize)
        # Buffers outlive the call, so they must not become inference tensors of a caller's mode.
        with torch.inference_mode(False):
            self._radius_words = torch.from_numpy(self._bytes[:border].view(np.int64))
            self._angle_words = torch.from_numpy(self._bytes[border:].view(turns))
            self._radius = torch.empty(self._half, dtype=dtype, device="cpu")

    def make_(self, out: torch.Tensor, std: float) -> None:
        """Overwrite `out`, which has the maker's size, with N(0, std²) values."""
        self._keystream(self._bytes)
        radius = self._radius.copy_(self._radius_words).abs_().mul_(self._scale).add_(self._offset)
        # std multiplies the radius after the root: std² could leave the range of float32.
        radius.log_().mul_(-2.0).sqrt_().mul_(std)
        first, second = out[: self._half], out[self._half :]
        first.copy_(self._angle_words).mul_(self._turn)
        torch.sin(first, out=second).mul_(radius)
        first.cos_().mul_(radius)
