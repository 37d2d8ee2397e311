"""Losses whose curvature is known by construction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steppe.flatness import Surface

# Three batches of different size; the mean of the scales is 2, the mean of the batch means is not.
SCALES = ((1.0, 2.0, 3.0, 4.0), (0.0, 1.0), (3.0,))


class Quadratic(nn.Module):
    """½·s·wᵀAw for a record with scale s."""

    def __init__(self, matrix: Tensor, start: Tensor | None = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.w = nn.Parameter(torch.zeros_like(matrix[0]) if start is None else start)

    def forward(self, scales: Tensor) -> Tensor:
        return 0.5 * scales * (self.w @ self.matrix @ self.w)


class Sign(nn.Module):
    """Two classes; the first one wins while the only weight is above zero."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([weight]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.w.expand(len(x)), torch.zeros(len(x))], 1)


def first(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is the model's output."""
    del target
    return output


def batches(dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.tensor(scales, dtype=dtype), torch.zeros(len(scales), dtype=dtype))
        for scales in SCALES
    ]


def rotated(eigenvalues: Sequence[float] | Tensor, seed: int = 0) -> Tensor:
    """A dense symmetric matrix with these eigenvalues."""
    spectrum = torch.as_tensor(eigenvalues, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(spectrum), len(spectrum), generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(noise).Q
    return basis @ torch.diag(spectrum) @ basis.T


def quadratic_surface(matrix: Tensor, start: Tensor | None = None) -> Surface:
    """The mean loss is wᵀAw, its Hessian 2A."""
    return Surface(Quadratic(matrix, start), first, batches(matrix.dtype))


def sign_surface(weight: float) -> Surface:
    data = [(torch.zeros(5), torch.zeros(5, dtype=torch.long))]
    return Surface(Sign(weight), nn.functional.cross_entropy, data)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
