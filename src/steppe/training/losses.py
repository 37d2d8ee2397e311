"""The losses that a configuration can name, and which of them are for classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from steppe.sampling import Records

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
# The largest second derivative by the output. The absolute error has none: with that of the squared
# error its last weights swing by about a tenth. The logistic loss is the cross-entropy of two
# classes, and needs no more care than that.
_BENDS: dict[Any, float] = {F.mse_loss: 2.0, F.smooth_l1_loss: 1.0, F.l1_loss: 2.0}
NO_CLASSES = (
    "averages the probabilities of classes, and this run has none: they take whole-number labels, "
    "a loss such as cross_entropy and a logit a class"
)


def loss_of(train: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The loss that a `[train]` table names; cross-entropy where it names none."""
    return LOSSES[train.get("loss", "cross_entropy")]


def for_classes(loss: Callable[..., Tensor] | None) -> bool:
    """Whether a model may answer with one logit a class; not known of a function of one's own.

    Examples:
        >>> for_classes(F.cross_entropy), for_classes(F.mse_loss)
        (True, False)
    """
    return loss in _OF_CLASSES or loss not in LOSSES.values()


def curvature(loss: Callable[..., Tensor] | None, rows: Records) -> float | None:
    """How much a loss of numbers bends along a step of length 1, at most; None for other losses.

    For a linear model with inputs within ±1 the bound is exact: the output moves by at most
    √(1 + inputs), bias included. Networks at their usual first weights move by less, and later by
    a few times as much.

    Args:
        loss: of the run; None where it has an objective of its own.
        rows: its records, of which the form alone is looked at.

    Examples:
        >>> import torch
        >>> from steppe.sampling import records
        >>> rows = records((torch.zeros(100, 4), torch.zeros(100)))
        >>> curvature(F.mse_loss, rows), curvature(F.cross_entropy, rows)
        (10.0, None)
    """
    if loss not in _BENDS:
        return None
    example = rows.example()
    several = isinstance(example, tuple | list)
    inputs = [part for part in (example[:-1] if several else ()) if isinstance(part, Tensor)]
    return _BENDS[loss] * (1 + sum(math.prod(part.shape[1:]) for part in inputs))


def why_no_outputs(loss: Callable[..., Tensor] | None, rows: Records) -> str | None:
    """Why outputs of several checkpoints cannot be averaged, or None where they may be.

    Args:
        loss: of the run; None where it has an objective of its own.
        rows: its records, of which the form alone is looked at.
    """
    if loss is None:
        return (
            "asks the model about inputs alone, and with objective= only the objective knows what "
            "is asked"
        )
    if not (for_classes(loss) and _labelled(rows)):
        return NO_CLASSES
    inputs = len(rows.example()) - 1
    return None if inputs == 1 else f"asks models of one input, and a record here has {inputs}"


def _labelled(rows: Records) -> bool:
    """Whether records are inputs with one whole number each, by their form alone."""
    example = rows.example()
    if not isinstance(example, tuple | list) or len(example) < 2:
        return False
    target = example[-1]
    return isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
