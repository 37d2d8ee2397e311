"""Features that do not learn: their constants, and their values for all records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import DataError
from steppe.finetuning import prove_features
from steppe.models import FixedFrontEnd
from steppe.records import WidenedRecords, as_records
from steppe.utils.validation import fail


def features(
    model: nn.Module,
    pairs: Any,
    progress: bool,
    cache: Path | None = None,
    as_batch: bool = False,
    prove: bool = False,
) -> Any:
    """Inputs and targets as the trained part of a model gets them.

    Fixed features are computed once, each record by itself, which costs no privacy. Constants that
    are not there yet are made first.

    Args:
        model: the whole model.
        pairs: records, or None.
        progress: whether to show a bar.
        cache: a folder where features are kept, or None.
        as_batch: return float32 tensors; otherwise features may be held in half precision.
        prove: whether a front-end of the user's own must be proven to describe each record by
            itself, as for private records.
    """
    if pairs is None or not isinstance(model, FixedFrontEnd):
        return pairs
    inputs, targets = _columns(pairs)
    front = model.front if model.front.fitted else model.front.fit(progress=progress)
    if prove:
        prove_features(front)
    dtype = torch.float32 if as_batch else front.precision
    found = front.transform(inputs, dtype=dtype, cache=cache, progress=progress)
    return (found, targets) if dtype == torch.float32 else WidenedRecords(found, targets)


def restore_front_end(model: nn.Module, path: Path) -> None:
    """Give a front-end the constants that a run began with, if there are any.

    Args:
        model: the whole model.
        path: of the file in the run's folder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not isinstance(model, FixedFrontEnd) or not path.exists():
        return
    try:
        constants = load_file(path)
    except (SafetensorError, OSError) as error:
        rule = "cannot be read as safetensors; it is damaged, or another file"
        raise DataError.about("file", path, rule, "restore it from a copy") from error
    try:
        model.front.load_state_dict(constants)
    except RuntimeError as error:
        rule = "does not fit the constants in the run's folder"
        remedy = "pass the network that was trained"
        raise fail("model", type(model).__name__, rule, remedy) from error


def _columns(pairs: Any) -> tuple[Tensor, Tensor]:
    rows = as_records(pairs)
    inputs, targets = getattr(pairs, "tensors", None) or rows.batch(torch.arange(len(rows)))
    return inputs, targets
