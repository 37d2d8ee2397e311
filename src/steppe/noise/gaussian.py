"""Place 5, the plain choice: independent Gaussian noise, the same in every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steppe.accounting import Participation
from steppe.randomness import Source, require_noise_dtype
from steppe.utils.validation import fail, positive

# The grid lies 2^32 times below the noise: fine enough that rounding 10^9 parameters moves two sums
# apart by less than 1e-5 standard deviations, coarse enough that sums of half a million standard
# deviations are still exact integers in float64.
_GRID_BITS = 32
_EXACT = 2.0**52
_BLOCK = 1 << 17  # values that are rounded at a time, in 1 MB


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussian noise with standard deviation multiplier × sensitivity.

    A step calls `start_` on its accumulator, adds the clipped gradients to it, and calls
    `finish_`. What `finish_` returns is the only thing that may leave the step.

    Args:
        grid: False: the accumulator starts as the noise, in its own precision. True: noise and
            sum are rounded to a common grid and added exactly, which closes the floating-point
            attacks on that addition; it costs a second pass in float64.

    Guarantees:
        The released vector is (clipped sum) + N(0, std²) per coordinate, up to floating-point
        rounding and to the tail beyond 9.49 std, see `Source.fill_normal_`. No input makes the
        noise smaller.

        With `grid=True` it is a function of the exact Gaussian mechanism applied to the sum that
        the accumulator holds, see `finish_`, up to the error of the float64 normal variates
        themselves. Rounding on the way into the accumulator comes before the mechanism and is not
        covered. A float64 accumulator keeps the error of each addition below the grid step; in a
        float32 one it is larger and depends on the other records. Sums over a physical batch that
        were made in float32 are rounded before either sees them.

    Examples:
        >>> from steppe.noise import SecureSource
        >>> source, noise, total = SecureSource(), Gaussian(), torch.empty(4)
        >>> _ = noise.start_(total, std=1.5, source=source)
        >>> total += 0.25  # the clipped gradients of a batch
        >>> released = noise.finish_(total, std=1.5, sensitivity=1.0, source=source)
        >>> released.shape
        torch.Size([4])
    """

    grid: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.grid, (bool, np.bool_)):
            raise fail("grid", self.grid, "must be True or False")
        object.__setattr__(self, "grid", bool(self.grid))

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        """The schedule as (number of steps, factor on the plan's noise multiplier)."""
        return ((steps, 1.0),)

    def begin(self, steps: int, participation: Participation, queries: int = 1) -> Gaussian:
        """The noise of one run: this one, which remembers nothing."""
        del steps, participation, queries
        return self

    def at(self, step: int, query: int) -> None:
        """Noise is independent, so it does not matter which query it is for."""

    def state(self) -> dict[str, Any]:
        """Nothing: later noise is fresh."""
        return {}

    def load(self, state: Mapping[str, Any], step: int, like: torch.Tensor) -> None:
        """Nothing to load."""

    def start_(self, buffer: torch.Tensor, std: float, source: Source) -> torch.Tensor:
        """Overwrite the accumulator with the state that clipped gradients are added to.

        Args:
            buffer: float32 or float64, with `grid=True` best float64; its content is lost.
            std: Standard deviation of the noise on the sum, above 0.
            source: Where the noise comes from.

        Returns:
            The buffer: the noise itself, or zeros where `finish_` adds the noise.
        """
        if self.grid:
            require_noise_dtype(buffer.dtype)
            positive("std", std)
            return buffer.zero_()
        return source.fill_normal_(buffer, std)

    def finish_(
        self, buffer: torch.Tensor, std: float, sensitivity: float, source: Source
    ) -> torch.Tensor:
        """Turn the accumulator into the released vector.

        Args:
            buffer: What `start_` returned, with the clipped gradients added.
            std: As given to `start_`.
            sensitivity: Largest norm by which one record moves the clipped sum.
            source: As given to `start_`.

        Returns:
            The buffer.

        Guarantees:
            With `grid=True`, let g be a power of two, S the sum and d its length. Rounding S to
            multiples of g moves two neighbouring sums apart by at most g√d, so the noise N gets
            the standard deviation std · (1 + g√d / sensitivity): the ratio to the sensitivity is
            the planned one. Then round(S) + round(N) = round(round(S) + N), which is the exact
            Gaussian mechanism followed by rounding. Both terms are integers times g, added
            without error. Sums beyond 2⁵² g are cut there, which moves no two sums apart. A
            float64 buffer receives that result as it is; a float32 buffer rounds it once more,
            which is post-processing.
        """
        return self._rounded_(buffer, std, sensitivity, source) if self.grid else buffer

    @torch.no_grad()
    def _rounded_(
        self, buffer: torch.Tensor, std: float, sensitivity: float, source: Source
    ) -> torch.Tensor:
        std = positive("std", std)
        sensitivity = positive("sensitivity", sensitivity)
        step = grid_step(std)
        covered = std * (1.0 + step * math.sqrt(buffer.numel()) / sensitivity)
        if not buffer.is_contiguous():
            raise fail("buffer", tuple(buffer.shape), "must be contiguous", "use a flat buffer")
        flat = buffer.view(-1)
        scratch = torch.empty(min(_BLOCK, flat.numel()), dtype=torch.float64, device=flat.device)
        for begin in range(0, flat.numel(), _BLOCK):
            total = flat[begin : begin + _BLOCK]
            noise = source.fill_normal_(scratch[: total.numel()], covered)
            # Dividing by a power of two is exact, so these are the only two roundings.
            noise.div_(step).round_()
            noise.add_(total.double().div_(step).round_().clamp_(-_EXACT, _EXACT))
            total.copy_(noise.mul_(step))
        return buffer


def grid_step(std: float) -> float:
    """The distance of two grid points for noise of this size, a power of two.

    Args:
        std: Standard deviation of the noise, above 0.

    Returns:
        2^k with k = floor(log2(std)) − 32.

    Examples:
        >>> grid_step(1.0) == 2.0**-32
        True
    """
    return math.ldexp(1.0, math.frexp(positive("std", std))[1] - 1 - _GRID_BITS)
