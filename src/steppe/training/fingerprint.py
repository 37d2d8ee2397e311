"""A private run's configuration as JSON. A resumed run must have the same one."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import nn

from steppe.models import stored_constants
from steppe.records import Records
from steppe.runs import digest as digest
from steppe.runs import dtype_name, name_of
from steppe.runs import of_model as of_model
from steppe.runs import of_optimizer as of_optimizer
from steppe.runs import of_scheduler as of_scheduler
from steppe.runs import require_same as require_same
from steppe.training.groups import Objective
from steppe.utils.batches import tensors_in
from steppe.utils.weight_files import as_safetensors


def of_front_end(model: nn.Module | None) -> str | None:
    """The digest of a front-end's stored constants, on which the features depend; None without."""
    constants = stored_constants(model)
    if not constants:
        return None
    return hashlib.sha256(as_safetensors(constants, {}, None)).hexdigest()[:32]


def of_objective(objective: Objective) -> dict[str, str | None]:
    """The names of the functions that are minimised."""
    return {
        "loss": _of_function(objective.loss),
        "objective": _of_function(objective.function),
        "augment": _of_function(objective.augment),
    }


def of_data(name: str, population: int | None, rows: Records) -> dict[str, Any]:
    """The public facts about private data: name, declared size, shape of a record."""
    example = rows.example()
    record = [[dtype_name(tensor), list(tensor.shape[1:])] for tensor in tensors_in(example)]
    return {"name": name, "population": population, "record": record}


def _of_function(function: Any) -> str | None:
    return None if function is None else name_of(function)
