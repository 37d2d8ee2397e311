"""Checks of labels before training, outside the guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from steppe.records.records import Records, bad_data
from steppe.utils.validation import positive_integer

_AT_ONCE = 4096


def check_labels(rows: Records, classes: int) -> None:
    """Require labels from 0 to classes − 1.

    An error during training would reveal something about a record, so labels are checked before the
    first step.

    Args:
        rows: the data; the last part of a record is its label.
        classes: the declared number of classes.
    """
    classes = positive_integer("classes", classes)
    for label in labels(rows):
        whole = not (label.is_floating_point() or label.is_complex())
        if not whole or bool(((label < 0) | (label >= classes)).any()):
            raise bad_data(
                "labels",
                f"{str(label.dtype).removeprefix('torch.')}",
                f"must be whole numbers from 0 to {classes - 1}",
                "recode them, or declare the right number of classes",
            )


def labels(rows: Records) -> Iterator[torch.Tensor]:
    """The labels of all records in order, several at a time.

    Args:
        rows: the data; the last part of a record is its label.
    """
    for start in range(0, len(rows), _AT_ONCE):
        end = min(start + _AT_ONCE, len(rows))
        yield _labels_of(rows.batch(torch.arange(start, end, device="cpu")))


def _labels_of(batch: Any) -> torch.Tensor:
    """The last part of a batch, if there are several and it is a tensor."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(parts, torch.Tensor):
        found = "a single tensor"
    elif isinstance(parts[-1], torch.Tensor):
        return parts[-1]
    else:
        found = f"{type(parts[-1]).__name__} as the last part of a record"
    raise bad_data(
        "data",
        found,
        "must end in one tensor of labels if classes or groups are used",
        "give (inputs, labels), or leave `classes` and `groups` out",
    )
