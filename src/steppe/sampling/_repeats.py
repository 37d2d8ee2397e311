"""Find records that a data set of torch's own kinds holds twice."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from steppe.sampling._bases import bases
from steppe.sampling._records import bad_data, require_numbered


def refuse_repeats(data: Any) -> None:
    """Refuse a `Subset` or `ConcatDataset` through which one record has two numbers.

    Args:
        data: Any data set; other kinds are taken to hold every record once.

    Guarantees:
        Subsets of subsets, negative indices and the same data set given twice are followed down
        to the data sets that hold the records. Only indices are looked at, no record is read.
    """
    if not isinstance(data, (Subset, ConcatDataset)):
        return
    held: dict[object, list[torch.Tensor]] = defaultdict(list)
    for base, rows in bases(data):
        require_numbered(base)
        # Two TensorDatasets around the same tensors are one.
        key = tuple(map(id, base.tensors)) if type(base) is TensorDataset else id(base)
        held[key].append(torch.arange(len(base), device="cpu") if rows is None else rows)
    if any(int(torch.cat(parts).bincount(minlength=1).max()) > 1 for parts in held.values()):
        what = "indices" if isinstance(data, Subset) else "data sets"
        raise bad_data(
            "data",
            f"{type(data).__name__} with repeated {what}",
            "must hold every record once, a record with k copies is protected k times less",
            f"remove the repeated {what}",
        )
