"""The same records by whatever way they are handed over, and parts that are none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from steppe.records import as_records, share_records

X, Y = torch.randn(20, 4), torch.arange(20)
BY_COLUMNS = X.t().contiguous().t()
BASE, OTHER = TensorDataset(X, Y), TensorDataset(torch.randn(5, 4), torch.arange(5))
PICTURES = torch.randn(20, 1, 2, 2)


class Mapped(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        return X[row], Y[row]


MAPPED = Mapped()
LISTED = [(row, int(label)) for row, label in zip(X, Y, strict=True)]
TABLE = torch.eye(3)
ONE_HOT = [(row, TABLE[number % 3]) for number, row in enumerate(X)]
BOTH: ConcatDataset[Any] = ConcatDataset([OTHER, BASE])

Pair = Callable[[], tuple[Any, Any]]
SHARED: dict[str, Pair] = {
    "the same tuple": lambda: ((X, Y), (X, Y)),
    "arrays": lambda: ((X.numpy(), Y.numpy()), (X.numpy(), Y.numpy())),
    "tensors and arrays": lambda: ((X, Y), (X.numpy(), torch.zeros(20))),
    "the labels alone": lambda: ((X, Y), (torch.zeros(20, 4), Y)),
    "a slice": lambda: ((X, Y), (X[5:6], Y[5:6])),
    "every second row": lambda: (X, X[::2]),
    "rows backwards": lambda: (X, X.numpy()[::-1]),
    "columns backwards": lambda: (X[:3], X.numpy()[2:, ::-1]),
    "some columns": lambda: (X[:, :3], X[:, 1:]),
    "another shape": lambda: (PICTURES, PICTURES.flatten(1)[7:8]),
    "stored by columns": lambda: (BY_COLUMNS, BY_COLUMNS[3:5]),
    "one number": lambda: (X, X[3, 2]),
    "a mapping": lambda: ({"x": X, "y": Y}, {"inputs": X}),
    "a nest": lambda: (X, ({"x": [X[2:4]]},)),
    "tensors and their data set": lambda: ((X, Y), BASE),
    "two data sets of one memory": lambda: (BASE, TensorDataset(X, Y)),
    "a subset": lambda: (BASE, Subset(BASE, range(10))),
    "subsets that meet": lambda: (Subset(BASE, range(15)), Subset(BASE, [-6])),
    "a subset and a slice": lambda: (Subset(BASE, [3, 8, 2]), (X[8:], Y[8:])),
    "a subset of a subset": lambda: (Subset(Subset(BASE, range(5, 20)), [1]), X[6:7]),
    "a subset of both": lambda: (Subset(BOTH, range(3, 8)), Subset(BASE, [2])),
    "a loader": lambda: (DataLoader(BASE), BASE),
    "to a loader": lambda: (MAPPED, DataLoader(MAPPED)),
    "a mapped data set": lambda: (MAPPED, Subset(MAPPED, [4])),
    "records": lambda: (as_records(Subset(MAPPED, range(9))), Subset(MAPPED, [8])),
    "lists": lambda: (LISTED, [LISTED[3]]),
    "a list and its memory": lambda: (X[4:6], Subset(LISTED, [1, 5])),  # type: ignore[arg-type]
}
APART: dict[str, Pair] = {
    "copies": lambda: ((X, Y), (X.clone(), Y.clone())),
    "slices": lambda: ((X[:12], Y[:12]), (X[12:].numpy(), Y[12:].numpy())),
    "odd and even rows": lambda: ((X[::2], Y[::2]), (X[1::2], Y[1::2])),
    "slices stored by columns": lambda: (BY_COLUMNS[:12], BY_COLUMNS[12:]),
    "columns of a table": lambda: (X[:12, :3], (X[12:, :3], X[12:, 3])),
    "subsets": lambda: (Subset(BASE, [4, 2, 9]), Subset(BASE, [-1, 3])),
    "subsets stored by columns": lambda: (Subset(BY_COLUMNS, [4, 2]), Subset(BY_COLUMNS, [3])),  # type: ignore[arg-type]
    "a subset and a slice": lambda: (Subset(BASE, range(12)), (X[12:], Y[12:])),
    "mapped subsets": lambda: (Subset(MAPPED, [4, 2]), DataLoader(Subset(MAPPED, [3, 5]))),
    "parts of both": lambda: (Subset(BOTH, range(5)), BASE),
    "records": lambda: (as_records(Subset(BASE, range(9))), Subset(BASE, [9])),
    "lists": lambda: (LISTED[:10], LISTED[10:]),
    "parts of a list with labels of one table": lambda: (
        Subset(ONE_HOT, range(14)),  # type: ignore[arg-type]
        Subset(ONE_HOT, range(14, 20)),  # type: ignore[arg-type]
    ),
    "two lists with labels of one table": lambda: (ONE_HOT[:14], ONE_HOT[14:]),
    "an expanded column": lambda: ((X[:6], Y[:1].expand(6)), (X[6:], Y[:1].expand(14))),
    "expanded rows": lambda: (
        TensorDataset(X[:6], X[:1].expand(6, 4)),
        (X[6:], X[:1].expand(14, 4)),
    ),
    "nothing": lambda: (X, X[:0]),
    "no memory": lambda: (X, torch.zeros(20, 4, device="meta")),
    "sparse": lambda: (X, X.to_sparse()),
    "a function": lambda: (X, print),
    "none": lambda: (X, None),
    "text": lambda: (X, np.array(["a"])),
}


@pytest.mark.parametrize("made", SHARED.values(), ids=SHARED)
def test_the_same_records_are_found(made: Pair) -> None:
    one, other = made()
    assert share_records(one, other)
    assert share_records(other, one)


@pytest.mark.parametrize("made", APART.values(), ids=APART)
def test_other_records_are_let_through(made: Pair) -> None:
    one, other = made()
    assert not share_records(one, other)
    assert not share_records(other, one)


def test_random_splits_agree_with_their_rows() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        ours, theirs = (generator.permutation(20)[: generator.integers(1, 6)] for _ in range(2))
        wanted = bool(np.isin(ours, theirs).any())
        first = Subset(BASE, ours.tolist())
        assert share_records(first, Subset(BASE, theirs.tolist())) is wanted
        # As a list of views, in which memory has no order.
        assert share_records([(X[int(row)], 0) for row in theirs], first) is wanted
