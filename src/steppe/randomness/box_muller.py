"""Box-Muller: from words of a keystream to pairs of normal values.

A pair of words (a, b), read as signed integers of 64 and w bits, gives two values

    r cos θ, r sin θ   with   r = sqrt(−2 ln u),  u = |a| 2⁻⁶³ + 2⁻⁶⁵,  θ = 2π b 2⁻ʷ

The radius takes 64 bits in single precision too: its smallest u decides how far the noise reaches,
and a value that the noise cannot reach without a record gives that record away. The conversion to
floating point keeps relative precision near |a| = 0, which is the tail. Values reach
sqrt(130 ln 2) = 9.49; 2.3e-21 of the normal law lies beyond. u is never 0, because of the offset,
and never 1, because the factor is one unit in the last place short of 2⁻⁶³. That shortness enlarges
the variance by about one rounding error; logarithm, root and cosine have errors of that size in
either direction.

The keystream is cut into groups: the radius words of so many values, then their turns. Of a group
of values the first half are cosines and the second half sines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

try:
    from steppe.randomness import _box_muller
except ImportError:  # installed without a C compiler
    COMPILED = False
else:
    COMPILED = True

GROUP = 1 << 14
"""How many values a group has."""

Keystream = Callable[[NDArray[np.uint8]], None]
"""Overwrites an array of bytes with fresh pseudorandom bytes."""

_HALF = GROUP // 2
# Some fifteen passes of torch make values, and two threads wait for each other after each: many
# groups at a time take less time. Memory keeps it from being more still.
_AT_ONCE = 16
_RADIUS_BITS = 64
_OFFSET = math.ldexp(1.0, -_RADIUS_BITS - 1)


class Pairs(Protocol):
    """Makes groups of normal values."""

    def fill_(self, groups: torch.Tensor, std: float) -> None:
        """Overwrite a `(groups, GROUP)` tensor with N(0, std²) values."""


def pairs(dtype: torch.dtype, keystream: Keystream) -> Pairs:
    """The fastest implementation for torch.float32 (w = 32) or torch.float64 (w = 64).

    Guarantees:
        All implementations give the same values for the same keystream, up to rounding.
    """
    if COMPILED and dtype == torch.float32:
        return CompiledBoxMuller(keystream)
    return TorchBoxMuller(dtype, keystream)


class CompiledBoxMuller:
    """By the compiled kernel, in float32: words and values of a group stay in the cache."""

    def __init__(self, keystream: Keystream) -> None:
        self._keystream = keystream
        self._words, self._turns = np.empty(_HALF, np.int64), np.empty(_HALF, np.int32)
        self._bytes = self._words.view(np.uint8), self._turns.view(np.uint8)

    def fill_(self, groups: torch.Tensor, std: float) -> None:
        for values in groups.numpy():
            for part in self._bytes:
                self._keystream(part)
            _box_muller.box_muller(self._words, self._turns, values, std)


class TorchBoxMuller:
    """By functions of torch, one after another."""

    def __init__(self, dtype: torch.dtype, keystream: Keystream) -> None:
        self._dtype, self._keystream = dtype, keystream
        self._turns = torch.int32 if dtype == torch.float32 else torch.int64
        shortened = math.ldexp(1.0 - torch.finfo(dtype).eps / 2, 1 - _RADIUS_BITS)
        self._scale, self._offset = number(shortened, dtype), number(_OFFSET, dtype)
        self._minus_two = number(-2.0, dtype)
        self._turn = number(math.ldexp(2.0 * math.pi, -torch.iinfo(self._turns).bits), dtype)

    def fill_(self, groups: torch.Tensor, std: float) -> None:
        factor = number(std, self._dtype)
        # Not kept, since it would add to a step's peak.
        shape = min(_AT_ONCE, len(groups)), _HALF
        words = torch.empty(shape, dtype=torch.int64, device="cpu")
        turns = torch.empty(shape, dtype=self._turns, device="cpu")
        radii = torch.empty(shape, dtype=self._dtype, device="cpu")
        for some in groups.split(_AT_ONCE):
            self._fill_(some, words[: len(some)], turns[: len(some)], radii[: len(some)], factor)

    def _fill_(
        self,
        groups: torch.Tensor,
        words: torch.Tensor,
        turns: torch.Tensor,
        radii: torch.Tensor,
        std: torch.Tensor,
    ) -> None:
        for of_group in zip(words.numpy(), turns.numpy(), strict=True):
            for part in of_group:
                self._keystream(part.view(np.uint8))
        radii.copy_(words).abs_().mul_(self._scale).add_(self._offset)
        radii.log_().mul_(self._minus_two).sqrt_().mul_(std)  # not −2 std², which may overflow
        cosines, sines = groups[:, :_HALF], groups[:, _HALF:]
        angles = cosines.copy_(turns).mul_(self._turn)
        torch.sin(angles, out=sines).mul_(radii)
        cosines.cos_().mul_(radii)


def number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A constant as a tensor without axes, in the type that it is used with.

    Torch would make one of a Python float in every call, and round one of another type in every
    call, to the same number; either takes longer than the arithmetic of a small group.
    """
    with torch.inference_mode(False):  # usable outside the caller's inference mode
        return torch.tensor(value, dtype=dtype, device="cpu")
