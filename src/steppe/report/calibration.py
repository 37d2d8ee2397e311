"""Calibration: whether predictions with 80 % confidence are correct in 80 % of all cases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.utils.validation import fail, positive_integer


@dataclass(frozen=True)
class Bin:
    """Predictions of similar confidence.

    Args:
        low: lower end of the confidence, not included but for the first bin.
        high: upper end, included.
        records: how many predictions.
        confidence: their mean confidence; 0 where there are none.
        accuracy: the share of them that is right; 0 where there are none.
    """

    low: float
    high: float
    records: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """Confidence beside accuracy.

    Args:
        bins: from low to high confidence.
        error: expected calibration error, the mean distance between the two over all records.
        accuracy: the share of records that is right.
    """

    bins: tuple[Bin, ...]
    error: float
    accuracy: float


def calibration(probabilities: Tensor, targets: Tensor, bins: int = 10) -> Calibration:
    """Compare the confidence of predictions with how often they are right.

    Args:
        probabilities: records × classes.
        targets: the right class of each record. Use public data: the result is not covered by the
            guarantee of the training.
        bins: number of equal bins of confidence.

    Returns:
        The bins and the expected calibration error.

    Examples:
        >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])
        >>> found = calibration(sure, torch.tensor([0, 1, 1]), bins=2)
        >>> found.bins[1].records, round(found.bins[1].confidence, 3), round(found.error, 3)
        (3, 0.867, 0.2)
    """
    positive_integer("bins", bins)
    if probabilities.ndim != 2 or targets.shape != probabilities.shape[:1] or not len(targets):
        shapes = (tuple(probabilities.shape), tuple(targets.shape))
        rule = "must be (records, classes) and (records,), not empty"
        raise fail("shapes", shapes, rule, "give one row and one class for each record")
    if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        rule = "must lie in [0, 1]"
        raise fail("probabilities", "numbers outside", rule, "take the softmax of logits")
    if targets.is_floating_point() or not bool(
        ((targets >= 0) & (targets < probabilities.shape[1])).all()
    ):
        rule = f"must be whole numbers from 0 to {probabilities.shape[1] - 1}"
        raise fail("targets", "others", rule, "give the class of each record")
    confidence, chosen = probabilities.detach().double().cpu().max(dim=1)
    right = (chosen == targets.cpu()).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    records = torch.bincount(place, minlength=bins)
    divisor = records.clamp(min=1)
    mean_confidence = torch.bincount(place, confidence, bins) / divisor
    mean_right = torch.bincount(place, right, bins) / divisor
    gap = (mean_confidence - mean_right).abs()
    return Calibration(
        bins=tuple(
            Bin(
                i / bins,
                (i + 1) / bins,
                int(records[i]),
                float(mean_confidence[i]),
                float(mean_right[i]),
            )
            for i in range(bins)
        ),
        error=float((gap * records).sum() / len(targets)),
        accuracy=float(right.mean()),
    )
