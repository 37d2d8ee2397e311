"""Random numbers of one block of pictures, the same on any machine and number of threads."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class BlockGenerator:
    """The random numbers of one block of pictures.

    Args:
        seed: of all pictures.
        block: number of the block.

    Examples:
        >>> bool((BlockGenerator(0, 1).uniform(3, low=2, high=4) >= 2).all())
        True
    """

    def __init__(self, seed: int, block: int) -> None:
        name = hashlib.sha256(f"{seed}/{block}".encode()).digest()
        self._generator = torch.Generator("cpu").manual_seed(int.from_bytes(name[:7], "little"))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers between two bounds."""
        return torch.rand(shape, generator=self._generator).mul_(high - low).add_(low)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self._generator)

    def chance(self, *shape: int, of: float) -> Tensor:
        """1 with a chance, else 0."""
        return (torch.rand(shape, generator=self._generator) < of).float()

    def choice(self, *shape: int, weights: tuple[float, ...]) -> Tensor:
        """Whole numbers from 0, with chances in proportion to the weights."""
        bounds = torch.tensor(weights, dtype=torch.float64).cumsum(0)
        found = self.uniform(*shape).double() * bounds[-1]
        return torch.bucketize(found, bounds[:-1], right=True)

    def power_law(self, low: float, high: float, exponents: Tensor) -> Tensor:
        """Sizes with density proportional to size^−exponent, one for each exponent above 1."""
        power = 1 - exponents
        first, last = low**power, high**power
        return (first + self.uniform(*exponents.shape) * (last - first)) ** (1 / power)
