"""The losses that a configuration can name, and their properties."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from steppe.records import Records

LOSSES: dict[str, Callable[..., Tensor]] = {
    name: getattr(F, name)
    for name in (
        "cross_entropy",
        "mse_loss",
        "binary_cross_entropy_with_logits",
        "l1_loss",
        "smooth_l1_loss",
        "nll_loss",
    )
}
_OF_CLASSES = (F.cross_entropy, F.nll_loss)
# The largest second derivative with respect to the output. The absolute error has none; with that
# of the squared error its last weights oscillate by about a tenth. The logistic loss is the
# cross-entropy of two classes and uses its rule.
_CURVATURES: dict[Any, float] = {F.mse_loss: 2.0, F.smooth_l1_loss: 1.0, F.l1_loss: 2.0}
# The rule counts this many hidden units as one input. With inputs of ±1 and torch's initial
# weights, the squared norm of the output's gradient is up to 14 for two hidden layers of 64, and 37
# for 256.
_UNITS = 4
NO_CLASSES = (
    "averages the probabilities of classes, and this run has none: classes need integer labels, "
    "a loss such as cross_entropy and one logit per class"
)


def loss_of(train: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The loss that a `[train]` table names; cross-entropy by default."""
    return LOSSES[train.get("loss", "cross_entropy")]


def for_classes(loss: Callable[..., Tensor] | None) -> bool:
    """Whether a model may return one logit per class. True for functions of the user's own.

    Examples:
        >>> for_classes(F.cross_entropy), for_classes(F.mse_loss)
        (True, False)
    """
    return loss in _OF_CLASSES or loss not in LOSSES.values()


def of_numbers(loss: Callable[..., Tensor] | None) -> bool:
    """Whether a loss is for targets that are real numbers alone."""
    return loss in _CURVATURES


def curvature(loss: Callable[..., Tensor] | None, model: nn.Module, rows: Records) -> float | None:
    """The largest curvature of a regression loss along a step of length 1; None for other losses.

    For a linear model with inputs within ±1 it is a bound: the output moves by at most
    √(1 + inputs), bias included. For networks it is an estimate that usual initial weights stay
    below.

    Args:
        loss: of the run; None if it has an objective instead.
        model: the trained model; only the shapes of its weights are used.
        rows: the records; only their form is used.

    Examples:
        >>> import torch
        >>> from steppe.records import as_records
        >>> rows = as_records((torch.zeros(100, 4), torch.zeros(100)))
        >>> curvature(F.mse_loss, nn.Linear(4, 1), rows)
        10.0
    """
    if loss not in _CURVATURES:
        return None
    example = rows.example()
    inputs = example[:-1] if isinstance(example, tuple | list) else ()
    size = sum(math.prod(part.shape[1:]) for part in inputs if isinstance(part, Tensor))
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    widest = max((weight[0].numel() for weight in trained if weight.dim() > 1), default=0)
    return _CURVATURES[loss] * (1 + max(size, widest / _UNITS))


def why_no_outputs(loss: Callable[..., Tensor] | None, rows: Records) -> str | None:
    """Why outputs of several checkpoints cannot be averaged, or None if they can.

    Args:
        loss: of the run; None if it has an objective instead.
        rows: its records; only their form is used.
    """
    if loss is None:
        return (
            "calls the model on inputs alone, but with objective= only the objective knows how the "
            "model is called"
        )
    if not (for_classes(loss) and _labelled(rows)):
        return NO_CLASSES
    inputs = len(rows.example()) - 1
    return None if inputs == 1 else f"needs models of one input, but a record here has {inputs}"


def _labelled(rows: Records) -> bool:
    """Whether records are inputs with one integer each, by their form alone."""
    example = rows.example()
    if not isinstance(example, tuple | list) or len(example) < 2:
        return False
    target = example[-1]
    return isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
