"""Find records that a data set of torch's own kinds holds twice."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from steppe.records.records import bad_data, require_numbered
from steppe.records.shared import share_records
from steppe.records.underlying import bases

_Part = tuple[TensorDataset, torch.Tensor | None]


def refuse_repeats(data: Any) -> None:
    """Refuse a `Subset` or `ConcatDataset` through which one record has two numbers.

    Args:
        data: Any data set; other kinds are taken to hold every record once.

    Guarantees:
        Subsets of subsets, negative indices and the same data set given twice are followed down
        to the data sets that hold the records, and tensors to the memory that they show. No record
        is read.
    """
    if not isinstance(data, (Subset, ConcatDataset)):
        return
    held: dict[int, list[torch.Tensor]] = defaultdict(list)
    of_tensors: list[_Part] = []
    for base, rows in bases(data):
        require_numbered(base)
        held[id(base)].append(torch.arange(len(base), device="cpu") if rows is None else rows)
        of_tensors += [(base, rows)] if type(base) is TensorDataset else []
    repeated = any(int(torch.cat(parts).bincount(minlength=1).max()) > 1 for parts in held.values())
    if repeated or any(itertools.starmap(_meet, itertools.combinations(of_tensors, 2))):
        what = "indices" if isinstance(data, Subset) else "data sets"
        raise bad_data(
            "data",
            f"{type(data).__name__} with repeated {what}",
            "must hold every record once, a record with k copies is protected k times less",
            f"remove the repeated {what}",
        )


def _meet(one: _Part, other: _Part) -> bool:
    """Whether two data sets around tensors show the same memory, wherever each begins."""
    if one[0] is other[0]:  # told by its rows already
        return False
    return share_records(
        *(x if rows is None else Subset(x, rows.tolist()) for x, rows in (one, other))
    )
