"""Losses in which every record stands alone."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from steppe.utils import validation


def per_record_token_mean(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, shift: bool = False
) -> Tensor:
    """Cross-entropy as the mean over each record's own tokens.

    The usual mean over a padded batch divides by the number of tokens of all records, so that the
    length of one record changes the gradients of the others.

    Args:
        logits: of shape (records, tokens, classes).
        labels: of shape (records, tokens); positions with `ignore_index` do not count.
        ignore_index: the label of padding.
        shift: True for a causal language model whose labels are its inputs: the logits at a
            position are compared with the label at the next one.

    Returns:
        One loss for each record; 0 for a record without tokens that count. Take its mean or sum
        for `backward()`.

    Guarantees:
        Entry i is made from record i alone.

    Examples:
        >>> import torch
        >>> labels = torch.tensor([[1, 2, -100], [0, -100, -100]])
        >>> per_record_token_mean(torch.zeros(2, 3, 4), labels)
        tensor([1.3863, 1.3863])
    """
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise validation.fail(
            "logits, labels",
            f"{logits.ndim} and {labels.ndim} axes",
            "must have shapes (records, tokens, classes) and (records, tokens)",
            "undo a flatten before the loss",
        )
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = F.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=ignore_index, reduction="none"
    )
    counted = (labels != ignore_index).sum(1).clamp(min=1)
    return each.sum(1) / counted
