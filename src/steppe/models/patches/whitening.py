"""Whitening of features: directions of large variance are shrunk, so that the others count more.

Along a principal direction of variance λ, features are multiplied by (r / (λ + r))^½. The noise of
a private head is the same in all directions; after whitening, so is the variance of the features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SPARE = 20  # directions beyond those that are kept
_ROUNDS = 4


class FeatureWhitening(nn.Module):
    """Shrinks features along the strongest principal directions of procedural features.

    Args:
        features: numbers in a record.
        directions: that are shrunk.
        reference: number of the direction whose variance is the scale r.
    """

    mean: Tensor
    directions: Tensor
    shrink: Tensor

    def __init__(self, features: int, directions: int, reference: int) -> None:
        super().__init__()
        self.reference = reference
        self.register_buffer("mean", torch.zeros(features))
        # In half precision: they are nearly all of a stored front-end.
        self.register_buffer("directions", torch.zeros(directions, features, dtype=torch.float16))
        self.register_buffer("shrink", torch.zeros(directions))

    def forward(self, features: Tensor) -> Tensor:
        centred = features - self.mean
        directions = self.directions.float()
        return centred - (centred @ directions.T * self.shrink) @ directions

    @torch.no_grad()
    def fit_(self, features: Tensor, seed: int) -> None:
        """Take mean and directions from features (records, features), which are overwritten."""
        self.mean.copy_(features.mean(0))
        variances, directions = principal(features.sub_(self.mean), len(self.directions), seed)
        scale = variances[self.reference - 1]
        self.directions.copy_(directions)
        self.shrink.copy_(1 - (scale / (variances + scale)).sqrt())


def principal(centred: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The strongest principal directions, by subspace iteration from a random start.

    Args:
        centred: (records, features) of mean 0.
        count: of directions.
        seed: of the start.

    Returns:
        Variances (count,), falling, and directions (count, features) of norm 1.
    """
    records, features = centred.shape
    tried = min(count + _SPARE, records, features)
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(features, tried, generator=generator)
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    seen = centred @ basis
    variances, turn = torch.linalg.eigh((seen.T @ seen).double() / records)
    order = torch.arange(tried - 1, tried - 1 - count, -1)
    return variances[order].float(), (basis @ turn[:, order].float()).T
