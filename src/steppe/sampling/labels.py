"""A look at the labels before training, on the owner's side."""

from __future__ import annotations

import torch

from steppe._validate import positive_integer
from steppe.sampling._records import Records, bad_data

_AT_ONCE = 4096


def check_labels(rows: Records, classes: int) -> None:
    """Refuse labels outside 0 … classes − 1.

    An error in the middle of training would say something about one record, so this is done before
    the first step and nothing of it is published but the refusal.

    Args:
        rows: the data; the last tensor of a record is its label.
        classes: the declared number of classes.
    """
    classes = positive_integer("classes", classes)
    for start in range(0, len(rows), _AT_ONCE):
        batch = rows.take(torch.arange(start, min(start + _AT_ONCE, len(rows))))
        label = list(batch.values())[-1] if isinstance(batch, dict) else batch[-1]
        if label.is_floating_point() or bool(((label < 0) | (label >= classes)).any()):
            raise bad_data(
                "labels",
                f"{str(label.dtype).removeprefix('torch.')}",
                f"must be whole numbers from 0 to {classes - 1}",
                "recode them, or declare the right number of classes",
            )
