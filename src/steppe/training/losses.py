"""The losses that a configuration can name, and which of them are for classes."""

from __future__ import annotations

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
