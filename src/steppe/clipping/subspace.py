"""The directions in which public gradients mostly lie, by power iteration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from steppe.utils import validation


def chunks(weights: int, groups: int, bases: int) -> list[tuple[int, int]]:
    """Cut the weights into contiguous chunks and share the bases out by the root of their size.

    Args:
        weights: how many numbers the weights have together.
        groups: how many chunks.
        bases: how many directions in all.

    Returns:
        (weights, bases) of every chunk.

    Examples:
        >>> chunks(10, groups=3, bases=4)
        [(4, 2), (3, 1), (3, 1)]
    """
    if bases > weights:
        raise validation.fail(
            "GEP.bases",
            bases,
            f"must not exceed the {weights} weights",
            "use fewer bases, or Flat(), since there is no residual to clip",
        )
    sizes = [weights // groups + (index < weights % groups) for index in range(groups)]
    roots = [math.sqrt(size) for size in sizes]
    edges = [round(bases * sum(roots[:index]) / sum(roots)) for index in range(groups + 1)]
    counts = sorted((b - a for a, b in itertools.pairwise(edges)), reverse=True)
    return list(zip(sizes, counts, strict=True))


def spanned(
    gradients: Callable[[], Iterator[Tensor]],
    sizes: Sequence[tuple[int, int]],
    iterations: int,
    generator: torch.Generator,
    device: torch.device,
) -> list[Tensor] | None:
    """Orthonormal directions of every chunk, nearly those of the largest singular values.

    Args:
        gradients: yields `(some, weights)` matrices; every call is one pass over the records. A
            record whose gradient is not finite is left out.
        sizes: (weights, bases) of every chunk.
        iterations: passes over the records.
        generator: where the search starts from; on the host, so that it starts alike everywhere.
        device: where the gradients are.

    Returns:
        A `(weights, bases)` matrix for each chunk; None where no gradient is finite.

    Guarantees:
        No more than one of the yielded matrices is held at a time. The directions are finite and
        orthonormal whatever the gradients are, and do not depend on the unit they come in.
    """
    found = anywhere(sizes, generator, device)
    for _ in range(iterations):
        images, any_finite = [_Image(bases) for bases in found], False
        for matrix in gradients():
            finite = torch.isfinite(matrix).all(1)[:, None]
            any_finite = any_finite or bool(finite.any())
            parts = torch.where(finite, matrix, 0.0).split([weights for weights, _ in sizes], dim=1)
            for part, image in zip(parts, images, strict=True):
                image.add(part)
        if not any_finite:
            return None
        found = [torch.linalg.qr(image.total).Q for image in images]
    return found


def anywhere(
    sizes: Sequence[tuple[int, int]], generator: torch.Generator, device: torch.device
) -> list[Tensor]:
    """Random directions of every chunk, `(weights, bases)` each, not orthonormal."""
    return [
        torch.randn(weights, bases, generator=generator, device="cpu").to(device)
        for weights, bases in sizes
    ]


class _Image:
    """Sum of GᵀG·bases over matrices G, in units of the largest number in them, squared.

    A square of a gradient soon leaves float32, from 1e19 upwards and from 1e-23 downwards. Units
    are powers of two: nothing is rounded that would not be rounded without them.

    Args:
        bases: directions, `(weights, bases)`.
    """

    _LEAST, _MOST = -100, 100  # exponents whose power of two and its inverse are float32 numbers

    def __init__(self, bases: Tensor) -> None:
        self._bases, self._exponent = bases, self._LEAST
        self.total = torch.zeros_like(bases)

    def add(self, gradients: Tensor) -> None:
        """Take in some records' gradients."""
        largest = float(gradients.abs().max())
        if largest == 0.0:
            return  # it has no unit, and must not choose that of the others
        exponent = min(math.frexp(largest)[1], self._MOST)
        if exponent > self._exponent:
            self.total *= 2.0 ** (2 * (self._exponent - exponent))
            self._exponent = exponent
        gradients = gradients * 2.0**-self._exponent
        self.total.addmm_(gradients.t(), gradients @ self._bases)
