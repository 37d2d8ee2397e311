"""Normal variates in blocks: Box-Muller on a keystream, every value handed out once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

# 2^17 values: each half is just large enough for torch to use two threads, and the words, the
# radii, the angles and the result of one block stay in a core's second-level cache.
BLOCK = 1 << 17
# What is left over is cut from blocks this large: a model of a few thousand weights should not hold
# megabytes of noise to come.
SPARE = 1 << 14

Keystream = Callable[[NDArray[np.uint8]], None]


class NormalBlocks:
    """Turns keystream into normal variates of one precision.

    Whole blocks are written straight into the destination. What is left over is cut from a
    small spare block, so a small request costs one multiplication and its share of a refill.

    A pair of words (a, b), read as signed integers of w bits, gives two values

        r cos θ, r sin θ   with   r = sqrt(−2 ln u),  u = |a| 2^(1−w) + 2^(−w−1),  θ = 2π b 2^(−w)

    The conversion to floating point keeps relative precision near |a| = 0, which is the tail:
    r reaches 6.76 in single and 9.49 in double precision. u is never 0, because of the offset,
    and never 1, because the factor is one unit in the last place short of 2^(1−w); that makes the
    variance larger by one rounding error, never smaller.

    Args:
        dtype: torch.float32 (32-bit words) or torch.float64 (64-bit words).
        keystream: Overwrites an array of bytes with fresh pseudorandom bytes.
    """

    def __init__(self, dtype: torch.dtype, keystream: Keystream) -> None:
        self._dtype, self._keystream = dtype, keystream
        self._makers: dict[int, _Maker] = {}
        with torch.inference_mode(False):
            self._spare = torch.empty(SPARE, dtype=dtype, device="cpu")
        self._used = SPARE

    def fill_(self, flat: torch.Tensor, std: float) -> None:
        """Overwrite a contiguous one-dimensional CPU tensor with N(0, std²) values."""
        whole = flat.numel() - flat.numel() % BLOCK
        for start in range(0, whole, BLOCK):
            self._maker(BLOCK).make_(flat[start : start + BLOCK], std)
        filled = whole
        while filled < flat.numel():
            if self._used == SPARE:
                self._maker(SPARE).make_(self._spare, 1.0)
                self._used = 0
            count = min(flat.numel() - filled, SPARE - self._used)
            fresh = self._spare[self._used : self._used + count]
            torch.mul(fresh, std, out=flat[filled : filled + count])
            self._used += count
            filled += count

    def _maker(self, size: int) -> _Maker:
        if size not in self._makers:
            self._makers[size] = _Maker(size, self._dtype, self._keystream)
        return self._makers[size]


class _Maker:
    """Makes blocks of one size, with the buffers that this takes."""

    def __init__(self, size: int, dtype: torch.dtype, keystream: Keystream) -> None:
        self._keystream, self._half = keystream, size // 2
        words = np.empty(size, dtype=np.int32 if dtype == torch.float32 else np.int64)
        width = 8 * words.itemsize
        self._bytes: NDArray[np.uint8] = words.view(np.uint8)
        self._scale = math.ldexp(1.0 - torch.finfo(dtype).eps / 2, 1 - width)
        self._offset = math.ldexp(1.0, -width - 1)
        self._turn = math.ldexp(2.0 * math.pi, -width)
        # Buffers outlive the call, so they must not become inference tensors of a caller's mode.
        with torch.inference_mode(False):
            self._words = torch.from_numpy(words).view(2, self._half)
            self._radius = torch.empty(self._half, dtype=dtype, device="cpu")
            self._angle = torch.empty_like(self._radius)

    def make_(self, out: torch.Tensor, std: float) -> None:
        """Overwrite `out`, which has the maker's size, with N(0, std²) values."""
        self._keystream(self._bytes)
        radius, angle = self._radius, self._angle
        radius.copy_(self._words[0]).abs_().mul_(self._scale).add_(self._offset)
        # std multiplies the radius after the root: std² could leave the range of float32.
        radius.log_().mul_(-2.0).sqrt_().mul_(std)
        angle.copy_(self._words[1]).mul_(self._turn)
        torch.cos(angle, out=out[: self._half]).mul_(radius)
        torch.sin(angle, out=out[self._half :]).mul_(radius)
