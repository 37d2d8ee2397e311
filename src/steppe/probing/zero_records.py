"""Checks that a model accepts the zeros of padding rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steppe.clipping import with_zeros
from steppe.errors import SteppeError, UnsupportedModelError
from steppe.randomness import global_generators_kept
from steppe.utils.formatting import as_said


def require_zeros_taken(objective: Callable[[Any], Tensor], example: Any) -> None:
    """Reject a model or loss that raises an error for padding rows of zeros.

    Args:
        objective: maps a batch to one loss for each record.
        example: a batch without records.
    """
    try:
        with torch.no_grad(), global_generators_kept():
            objective(with_zeros(example, 1))
    except SteppeError:
        raise
    except Exception as error:  # whatever error the model or the loss raises
        refused = UnsupportedModelError.about(
            "fixed_shapes",
            True,
            "model and loss must accept records of zeros, because batches are padded with them",
            "accept them with any result, or leave out fixed_shapes",
        )
        refused.otherwise = "\n" + as_said(error)
        raise refused from error
