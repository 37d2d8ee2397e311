"""What models say about prepared inputs, and how far the checkpoints of a run differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from steppe.averaging import StoredCheckpoints, half_width
from steppe.utils import validation
from steppe.utils.module_modes import evaluating

_AT_ONCE = 1024


@dataclass(frozen=True)
class Intervals:
    """Predictions with intervals from the stored checkpoints.

    Args:
        predictions: labels, or the outputs of a regression.
        low, high: ends of Student-t intervals, from the checkpoints: around the mean probability of
            the label, or around the output.
        probability: the mean probability of the label; None without classes.
        agreement: the share of checkpoints that choose the label; None without classes.
        checkpoints: their number.
        confidence: of the intervals.
    """

    predictions: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    probability: NDArray[Any] | None
    agreement: NDArray[Any] | None
    checkpoints: int
    confidence: float


@torch.no_grad()
def outputs(model: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The outputs of a model with some weights, in float64; the model itself is left alone.

    Args:
        model: the model.
        weights: by name; those that are not among them are the model's own.
        inputs: any number along the first dimension.
    """
    with evaluating(model):
        parts = [functional_call(model, dict(weights), (part,)) for part in inputs.split(_AT_ONCE)]
    found = torch.cat([part.double() for part in parts])
    if bool(found.isnan().any()):
        rule = "answers with numbers that are not finite"
        remedy = "choose another average, or train again with a smaller learning rate"
        raise validation.fail("model", type(model).__name__, rule, remedy)
    return found


def output_intervals(
    model: nn.Module,
    checkpoints: StoredCheckpoints | Sequence[Mapping[str, Tensor]],
    inputs: Tensor,
    confidence: float,
) -> tuple[Tensor, Tensor, int]:
    """Ask every checkpoint about every input.

    Args:
        model: the model that they belong to.
        checkpoints: of one run.
        inputs: any number along the first dimension.
        confidence: of the Student-t intervals, in (0, 1).

    Returns:
        The mean outputs, half the width of their intervals, and how many checkpoints answered.
    """
    every = torch.stack([outputs(model, weights, inputs) for weights in checkpoints])
    mean = every.mean(0)
    scatter = (every - mean).square().sum(0)
    return mean, half_width(scatter, len(every), confidence), len(every)
