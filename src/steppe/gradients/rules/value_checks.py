"""Functions of torch that check values before they compute, without these checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`F.gaussian_nll_loss`, whose check for negative variances reads those of the whole batch.

    A negative variance counts as `eps` here, as one between 0 and `eps` does there.
    """
    if not isinstance(var, Tensor) or reduction != "none":
        return F.gaussian_nll_loss(input, target, var, full=full, eps=eps, reduction=reduction)
    if var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)  # one for each row, as there
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    return loss + 0.5 * math.log(2 * math.pi) if full else loss
