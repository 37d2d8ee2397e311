"""Batch normalisation by fixed statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


class FrozenBatchNorm(nn.Module):
    """Batch normalisation by the statistics that it has learnt, in every mode.

    Scale and shift can be trained; each record is treated alone. `train()` does not bring batch
    statistics back.

    Args:
        num_features: channels.
        eps: added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    @classmethod
    def of(cls, layer: _BatchNorm) -> FrozenBatchNorm:
        """With weights and statistics of a layer, by the same names.

        Args:
            layer: with running statistics.
        """
        found = cls(layer.num_features, layer.eps)
        found.weight, found.bias = layer.weight, layer.bias
        for name, buffer in layer.named_buffers(recurse=False):
            found.register_buffer(name, buffer)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"
