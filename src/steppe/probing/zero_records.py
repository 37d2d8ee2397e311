"""Does a model take the zeros that batches are filled up with?"""

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
    """Refuse a model or loss that stops at the zeros which batches are filled up with.

    Args:
        objective: maps a batch to one loss for each record.
        example: a batch without records.
    """
    try:
        with torch.no_grad(), global_generators_kept():
            objective(with_zeros(example, 1))
    except SteppeError:
        raise
    except Exception as error:  # whatever the model or the loss says
        refused = UnsupportedModelError.about(
            "fixed_shapes",
            True,
            "model and loss must take records of zeros, with which batches are filled up",
            "let them take these, whatever comes out, or leave fixed_shapes out",
        )
        refused.otherwise = "\n" + as_said(error)
        raise refused from error
