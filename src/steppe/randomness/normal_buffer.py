"""Normal variates, each of which is used once."""

from __future__ import annotations

import torch

from steppe.randomness.box_muller import GROUP, Keystream, number, pairs
from steppe.randomness.precision import require_noise_std


class NormalBlocks:
    """Turns keystream into normal variates of one precision.

    Whole groups are written straight into the destination. What is left over is cut from a spare
    group, so a small request costs one multiplication and its share of a refill, and a model of a
    few thousand weights does not hold megabytes of noise to come.

    Guarantees:
        An exception at any moment, an interrupt included, can lose values but never returns a value
        out twice.

    Args:
        dtype: torch.float32 or torch.float64.
        keystream: Overwrites an array of bytes with fresh pseudorandom bytes.
    """

    def __init__(self, dtype: torch.dtype, keystream: Keystream) -> None:
        self._dtype, self._pairs = dtype, pairs(dtype, keystream)
        with torch.inference_mode(False):  # usable outside the caller's inference mode
            self._spare = torch.empty(GROUP, dtype=dtype, device="cpu")
        self._used = GROUP
        # What was asked for last, the same in this precision, and that as a tensor.
        self._std = 1.0, 1.0, number(1.0, dtype)

    def fill_(self, flat: torch.Tensor, std: float) -> None:
        """Overwrite a contiguous one-dimensional CPU tensor with N(0, std²) values."""
        if type(std) is not float or std != self._std[0]:
            held = require_noise_std(std, self._dtype)
            self._std = float(std), held, number(held, self._dtype)
        total = flat.numel()
        filled = total - total % GROUP
        if filled:
            self._pairs.fill_(flat[:filled].view(-1, GROUP), self._std[1])
        while filled < total:
            if self._used == GROUP:
                self._pairs.fill_(self._spare.view(1, GROUP), 1.0)
                self._used = 0
            first = self._used
            count = min(total - filled, GROUP - first)
            # Counted as used before they leave: see Guarantees.
            self._used = first + count
            into = flat if count == total else flat[filled : filled + count]
            torch.mul(self._spare[first : first + count], self._std[2], out=into)
            filled += count
