"""Tells the owner of the data that no record has contributed to the first steps."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from steppe.errors import DataWarning
from steppe.utils.user_code import level

# Records of so many steps are counted.
_STEPS = 3


class DroppedRecords:
    """Counts the records of the first steps, and those whose gradients were not finite.

    Guarantees:
        The count decides about a message alone, never about a step: nothing is released and no
        error is raised. The message depends on the records; it is for whoever runs the training and
        is in no file.
    """

    def __init__(self) -> None:
        self._seen = self._dropped = 0

    def see(self, norms: Tensor) -> None:
        """Count the records of a part of a batch by the norms of their gradients."""
        self._seen += norms.numel()
        self._dropped += int((~torch.isfinite(norms)).sum())

    def after(self, steps: int) -> bool:
        """Say so if all records were dropped. Whether the counting is over.

        Args:
            steps: the number of steps taken with this object.
        """
        if steps < _STEPS or not self._seen:
            return False
        if self._dropped == self._seen:
            message = (
                f"all records of the first {steps} steps were left out, because their gradients "
                "are not finite: the weights follow noise alone. Look for inputs that are NaN or "
                "infinite, and for a loss that overflows. This message depends on the records: "
                "keep it with the data."
            )
            try:
                warnings.warn(message, DataWarning, stacklevel=level())
            except DataWarning:  # as an error it would end the run because of the records
                with warnings.catch_warnings():
                    warnings.simplefilter("always", DataWarning)
                    warnings.warn(message, DataWarning, stacklevel=level())
        return True
