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


def labelled(rows: Records) -> bool:
    """Whether records are inputs with one whole number each, by their form alone."""
    example = rows.example()
    if not isinstance(example, tuple | list) or len(example) < 2:
        return False
    target = example[-1]
    return isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
