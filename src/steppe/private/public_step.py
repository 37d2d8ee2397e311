"""A plain step on public records between private ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.updates import DPAdam
from steppe.utils import validation


def refuse_noise_aware(optimizer: Optimizer) -> None:
    """Reject an optimizer that corrects for the noise of private gradients."""
    if isinstance(optimizer, DPAdam):
        rule = "subtracts the noise of private gradients, which public ones do not have"
        raise validation.fail("optimizer", "DPAdam", rule, "use SGD or Adam with public steps")


def take_public_step(engine: ClippedSum, optimizer: Optimizer, batch: Any) -> None:
    """Move the weights along the mean gradient of public records, without clip and noise.

    Args:
        engine: with the trained weights and the losses.
        optimizer: the same as for private steps, so that both share its momentum.
        batch: in the form of a private batch.
    """
    weights = list(engine.parameters.values())
    with torch.enable_grad():
        loss = engine.objective(batch).mean()
        found = torch.autograd.grad(loss, weights, materialize_grads=True)
    for weight, gradient in zip(weights, found, strict=True):
        weight.grad = gradient
    try:
        optimizer.step()
    finally:
        for weight in weights:
            weight.grad = None
