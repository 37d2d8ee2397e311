"""Every form of data gives the same batches, and what cannot be sampled is refused."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from steppe.errors import DataError
from steppe.records import Records, as_records, check_labels

N = 23
X = torch.arange(N * 6, dtype=torch.float32).view(N, 2, 3)
Y = torch.arange(N) * 10
ROWS = [torch.tensor(rows, dtype=torch.int64) for rows in ([], [3], [22, 0, 7], [], [], [1, 2], [])]


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        return X[row], int(Y[row])


class Named(Pairs):
    def __getitem__(self, row: int) -> Any:
        return {"x": X[row].numpy(), "y": int(Y[row])}


class Bulk(Pairs):
    """A data set with a bulk way, which does not expect to be asked for nothing."""

    def __getitems__(self, rows: list[int]) -> list[Any]:
        if not rows:
            raise RuntimeError("asked for nothing")
        return [self[row] for row in rows]


Batch = namedtuple("Batch", "x y")


def picky_collate(items: list[Any]) -> Batch:
    """A collate function that cannot take an empty list."""
    return Batch(torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items]))


def note_worker(worker: int) -> None:
    info = get_worker_info()
    if info is None or type(info.dataset) is not Pairs:
        raise RuntimeError("the worker must see the user's own data set")


FORMS: dict[str, Any] = {
    "tuple of tensors": lambda: (X, Y),
    "tuple of arrays": lambda: (X.numpy(), Y.numpy()),
    "tensor and array": lambda: (X, Y.numpy()),
    "dict of tensors": lambda: {"x": X, "y": Y},
    "dict of arrays": lambda: {"x": X.numpy(), "y": Y.numpy()},
    "TensorDataset": lambda: TensorDataset(X, Y),
    "Subset of TensorDataset": lambda: Subset(
        TensorDataset(X.flip(0), Y.flip(0)), list(range(N))[::-1]
    ),
    "Subset of Dataset": lambda: Subset(Pairs(), range(N)),
    "Dataset": Pairs,
    "Dataset of dicts": Named,
    "Dataset with __getitems__": Bulk,
    "list of pairs": lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "DataLoader": lambda: DataLoader(Pairs(), batch_size=4, shuffle=True),
    "DataLoader, TensorDataset": lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
    "DataLoader, collate_fn": lambda: DataLoader(Pairs(), batch_size=4, collate_fn=picky_collate),
    "DataLoader, fast data, collate_fn": lambda: DataLoader(
        TensorDataset(X, Y), batch_size=4, collate_fn=picky_collate
    ),
    "DataLoader, 2 workers": lambda: DataLoader(
        Pairs(), batch_size=4, num_workers=2, worker_init_fn=note_worker
    ),
    "DataLoader, 2 workers, collate_fn": lambda: DataLoader(
        Pairs(), batch_size=4, num_workers=2, collate_fn=picky_collate, prefetch_factor=3
    ),
    "DataLoader, out of order": lambda: DataLoader(
        Pairs(), batch_size=4, num_workers=2, in_order=False
    ),
}


def columns(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return (batch["x"], batch["y"]) if isinstance(batch, dict) else tuple(batch)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_batches(form: str) -> None:
    data = as_records(FORMS[form]())
    assert isinstance(data, Records)
    assert len(data) == N
    streamed = list(data.stream(iter(ROWS)))
    assert len(streamed) == len(ROWS)
    for rows, *batches in zip(ROWS, streamed, [data.batch(rows) for rows in ROWS], strict=True):
        for batch in batches:
            x, y = columns(batch)
            assert torch.equal(x, X[rows])
            assert torch.equal(y, Y[rows])
            assert x.dtype == torch.float32
            assert x.shape[1:] == (2, 3)


@pytest.mark.parametrize("form", FORMS)
def test_empty_batches_have_the_structure_of_full_ones(form: str) -> None:
    data = as_records(FORMS[form]())
    empty, full = data.batch(ROWS[0]), data.batch(ROWS[2])
    assert type(empty) is type(full)
    for none, some in zip(columns(empty), columns(full), strict=True):
        assert none.dtype == some.dtype
        assert none.shape == (0, *some.shape[1:])


def test_only_empty_batches() -> None:
    for form in ("Dataset", "DataLoader, 2 workers", "tuple of tensors"):
        batches = list(as_records(FORMS[form]()).stream([ROWS[0]] * 5))
        assert [len(columns(batch)[0]) for batch in batches] == [0] * 5


class Slow(Pairs):
    """Early rows take longer, so that a careless pool of workers would overtake."""

    def __getitem__(self, row: int) -> Any:
        if row < 2:
            torch.linalg.svdvals(torch.randn(250, 250))
        return super().__getitem__(row)


def test_workers_keep_the_order() -> None:
    data = as_records(DataLoader(Slow(), batch_size=2, num_workers=2))
    wanted = [torch.tensor([row]) for row in range(N)] + [torch.tensor([0, 5]), torch.tensor([9])]
    found = [batch[1] for batch in data.stream(wanted)]
    assert [y.tolist() for y in found] == [Y[rows].tolist() for rows in wanted]


def test_stream_is_lazy() -> None:
    def endless() -> Iterator[torch.Tensor]:
        while True:
            yield torch.tensor([4])

    for form in ("Dataset", "DataLoader, 2 workers", "TensorDataset"):
        stream = as_records(FORMS[form]()).stream(endless())
        assert next(stream)[1].tolist() == [40]


def test_tensor_dataset_is_indexed_directly() -> None:
    class Spy(TensorDataset):
        def __getitem__(self, row: int) -> Any:
            x, y = super().__getitem__(row)
            return x + 1, y

    # Fast only where nothing is lost: a subclass may transform in __getitem__.
    assert torch.equal(as_records(Spy(X, Y)).batch(ROWS[2])[0], X[ROWS[2]] + 1)
    calls = 0

    def counted(self: TensorDataset, row: int) -> Any:
        nonlocal calls
        calls += 1
        return tuple(tensor[row] for tensor in self.tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorDataset, "__getitem__", counted)
        list(as_records(DataLoader(TensorDataset(X, Y), batch_size=4)).stream(ROWS))
    assert calls == 0


def test_single_array_stays_single() -> None:
    for data in (X, X.numpy()):
        assert torch.equal(as_records(data).batch(ROWS[2]), X[ROWS[2]])


def test_subset_counts_its_own_rows() -> None:
    data = as_records(Subset(TensorDataset(X, Y), [20, 4, 11]))
    assert len(data) == 3
    assert data.batch(torch.tensor([0, 2]))[1].tolist() == [200, 110]


@pytest.mark.parametrize("base", [TensorDataset(X, Y), Pairs()])
@pytest.mark.parametrize(
    "indices", [[20, -1, 4], torch.tensor([20, 22, 4]), np.array([20, 22, -19]), range(20, 23)]
)
def test_subset_of_distinct_records(base: Any, indices: Any) -> None:
    data = as_records(Subset(Subset(base, range(N)), indices))
    wanted = [10 * (int(row) % N) for row in indices]
    assert data.batch(torch.arange(3))[1].tolist() == wanted
    both = ConcatDataset([Subset(base, indices), Subset(base, [0, 1])])
    assert as_records(both).batch(torch.arange(5))[1].tolist() == [*wanted, 0, 10]


def test_unusual_numpy_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, X.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapped = as_records(np.load(path, mmap_mode="r"))
    assert torch.equal(mapped.batch(ROWS[2]), X[ROWS[2]])
    flipped = as_records(X.numpy()[::-1])
    assert torch.equal(flipped.batch(ROWS[2]), X.flip(0)[ROWS[2]])
    foreign = as_records(Y.numpy().astype(">i8"))
    assert torch.equal(foreign.batch(ROWS[2]), Y[ROWS[2]])


def test_records_of_records() -> None:
    data = as_records((X, Y))
    assert as_records(data) is data


def test_gradients_do_not_reach_into_the_data() -> None:
    weights = X.clone().requires_grad_()
    assert not as_records(weights).batch(ROWS[2]).requires_grad


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict, as tokenisers return."""


def encode(items: list[Any]) -> Encoding:
    inner = OrderedDict(x=torch.stack([x for x, _ in items]))
    return Encoding(inner=inner, y=torch.tensor([y for _, y in items]))


@pytest.mark.parametrize("workers", [0, 1])
def test_mappings_become_plain_dicts(workers: int) -> None:
    data = as_records(DataLoader(Pairs(), batch_size=4, collate_fn=encode, num_workers=workers))
    for batch in (*data.stream(ROWS), data.batch(ROWS[0]), data.batch(ROWS[2])):
        assert type(batch) is dict
        assert type(batch["inner"]) is dict
    assert torch.equal(data.batch(ROWS[2])["inner"]["x"], X[ROWS[2]])
    ordered = as_records([OrderedDict(x=X[row], y=Y[row]) for row in range(N)])
    assert type(ordered.batch(ROWS[0])) is type(ordered.batch(ROWS[2])) is dict


def test_mapping_of_columns() -> None:
    batch = as_records(Encoding(x=X, y=Y)).batch(ROWS[2])
    assert type(batch) is dict
    assert torch.equal(batch["y"], Y[ROWS[2]])


def test_empty_batches_hold_no_record() -> None:
    first, second = (as_records(Pairs()).batch(ROWS[0]) for _ in range(2))
    assert first[0].untyped_storage().nbytes() == 0
    first.clear()
    assert len(second) == 2


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength:
    def __getitem__(self, row: int) -> int:
        return row


class Frame:
    iloc = None

    def __len__(self) -> int:
        return 3

    def __getitem__(self, column: str) -> int:
        return 0


class Texts(Pairs):
    def __getitem__(self, row: int) -> Any:
        return X[row], "cat"


class NamedTexts(Pairs):
    def __getitem__(self, row: int) -> Any:
        return {"x": X[row], "label": "cat"}


DATASET = TensorDataset(X, Y)
SAMPLER = (
    "records must be chosen by the plan's sampler alone, because the account assumes its sampling "
    "probabilities"
)
REFUSED: dict[str, tuple[Any, str]] = {
    "iterable": (Endless, "data=Endless: must return any record by its index, since each is"),
    "iterable in a loader": (lambda: DataLoader(Endless()), "data=Endless: must return any record"),
    "generator": (lambda: (row for row in range(3)), "data=generator: must return any record"),
    "no length": (NoLength, "data=NoLength: must have __len__; add it: it says how many"),
    "no length in a loader": (
        lambda: DataLoader(NoLength()),  # type: ignore[arg-type]
        "data=NoLength: must have __len__",
    ),
    "frame": (Frame, "data=Frame: must be indexed by record; give frame.to_numpy()"),
    "no records": (lambda: torch.empty(0, 3), "data=no records: must not be empty; give at least"),
    "empty list": (list, "data=no records: must not be empty"),
    "empty subset": (lambda: Subset(DATASET, []), "data=no records: must not be empty"),
    "no columns": (tuple, "data=(): must have a column; give at least one array"),
    "uneven": (
        lambda: {"x": X, "y": Y[:-1]},
        "data['y']=array of shape (22,): must have as many entries as data['x'], which has 23; ",
    ),
    "text array": (
        lambda: (X, np.array(["cat"] * N)),
        "data[1]=array of type <U3: must hold numbers; encode text and objects as numbers by a",
    ),
    "masked": (
        lambda: (np.ma.masked_array(np.zeros((3, 2)), mask=True), np.zeros(3)),
        "data[0]=masked array: must have no mask, because the mask would be lost",
    ),
    "object array": (
        lambda: {"x": X, "y": np.array([None] * N)},
        "data['y']=array of type object: must hold numbers",
    ),
    "list column": (lambda: (X, [1] * N), "data[1]=list: must be a tensor or a numpy array"),
    "scalar": (lambda: torch.tensor(3.0), "data=a single number: must have one entry a record"),
    "list of arrays": (lambda: [X, Y], "data=list of arrays: may mean columns or records; give a"),
    "text label": (Texts, "data[1]=str: must become a tensor in a batch; encode it as numbers in"),
    "named text label": (NamedTexts, "data['label']=str: must become a tensor in a batch"),
    "text list": (lambda: ["a", "b"], "data=str: must become a tensor in a batch"),
    "lossy collate_fn": (
        lambda: DataLoader(Pairs(), batch_size=2, collate_fn=lambda items: items[0][0]),
        "data=tensor of shape (2, 3): must have first dimension 1 in a batch of one record; let",
    ),
    "repeats": (
        lambda: Subset(DATASET, [1, 2, 1]),
        "data=Subset with repeated indices: must hold every record once, because a record with k",
    ),
    "slow repeats": (lambda: Subset(Pairs(), [1, 1]), "data=Subset with repeated indices"),
    "repeats in a tensor": (
        lambda: Subset(DATASET, torch.tensor([0, 0])),  # type: ignore[arg-type]
        "data=Subset with repeated indices",
    ),
    "repeats in a list of tensors": (
        lambda: Subset(Pairs(), list(torch.tensor([0, 0]))),  # type: ignore[arg-type]
        "data=Subset with repeated indices",
    ),
    "repeats in an array": (
        lambda: Subset(DATASET, np.array([3, 3])),  # type: ignore[arg-type]
        "data=Subset with repeated indices",
    ),
    "negative alias": (lambda: Subset(DATASET, [0, -N]), "data=Subset with repeated indices"),
    "slow negative alias": (lambda: Subset(Pairs(), [22, -1]), "data=Subset with repeated indices"),
    "nested repeats": (
        lambda: Subset(Subset(DATASET, [1, 1, 2]), [0, 1]),
        "data=Subset with repeated indices",
    ),
    "slow nested repeats": (
        lambda: Subset(Subset(Pairs(), [1, 1, 2]), [0, 1]),
        "data=Subset with repeated indices",
    ),
    "nested negative alias": (
        lambda: Subset(Subset(Pairs(), [4, 7]), [0, -2]),
        "data=Subset with repeated indices",
    ),
    "data set twice": (
        lambda: ConcatDataset([DATASET, DATASET]),
        "data=ConcatDataset with repeated data sets: must hold every record once, because a "
        "record with k copies is protected k times less; remove the repeated data sets.",
    ),
    "data set twice in a loader": (
        lambda: DataLoader(ConcatDataset([DATASET, DATASET]), batch_size=4),
        "data=ConcatDataset with repeated data sets",
    ),
    "tensors twice": (
        lambda: ConcatDataset([TensorDataset(X, Y), TensorDataset(X, Y)]),
        "data=ConcatDataset with repeated data sets",
    ),
    "views of the same tensors": (
        lambda: ConcatDataset([TensorDataset(X, Y), TensorDataset(X[:], Y[:])]),
        "data=ConcatDataset with repeated data sets",
    ),
    "slices that overlap": (
        lambda: ConcatDataset([TensorDataset(X[:6], Y[:6]), TensorDataset(X[4:], Y[4:])]),
        "data=ConcatDataset with repeated data sets",
    ),
    "rows of a slice": (
        lambda: ConcatDataset([Subset(TensorDataset(X, Y), [1, 7]), TensorDataset(X[5:9], Y[5:9])]),
        "data=ConcatDataset with repeated data sets",
    ),
    "overlapping parts": (
        lambda: ConcatDataset([Subset(DATASET, [0, 1]), Subset(DATASET, [5, -22])]),
        "data=ConcatDataset with repeated data sets",
    ),
    "subset of a data set twice": (
        lambda: Subset(ConcatDataset([DATASET, DATASET]), [3, N + 3]),
        "data=Subset with repeated indices",
    ),
    "index out of range": (
        lambda: Subset(DATASET, [0, N]),
        "data=Subset: must have indices that its data set of 23 records has; remove the others.",
    ),
    "index too negative": (lambda: Subset(Pairs(), [-N - 1]), "data=Subset: must have indices"),
    "index no number": (
        lambda: Subset(Pairs(), ["a"]),  # type: ignore[list-item]
        "data=Subset: must have whole numbers as its indices; give a list of int.",
    ),
    "index a float": (
        lambda: Subset(Pairs(), [0.5]),  # type: ignore[list-item]
        "data=Subset: must have whole numbers",
    ),
    "subset without length": (lambda: Subset(NoLength(), [0]), "data=NoLength: must have __len__"),  # type: ignore[arg-type]
    "unsigned": (
        lambda: (np.zeros((N, 2), dtype=np.uint16), Y),
        "data[0]=array of type uint16: must have a type that torch can index; convert it",
    ),
    "unsigned tensor": (
        lambda: torch.zeros(N, dtype=torch.uint32),
        "data=array of type uint32: must have a type",
    ),
    "sparse": (
        lambda: (X.to_sparse(), Y),
        "data[0]=sparse or nested tensor: must be dense, because its rows are indexed;",
    ),
    "sparse column": (lambda: {"x": X.to_sparse()}, "data['x']=sparse or nested tensor: "),
    "complex": (
        lambda: (np.zeros(N, dtype=np.complex64), Y),
        "data[0]=array of type complex64: must hold real numbers; give torch.view_as_real of it",
    ),
    "complex records": (
        lambda: [(torch.zeros(2, dtype=torch.complex64), 1)],
        "data[0]=array of type complex64: must hold real numbers",
    ),
    "drop_last": (
        lambda: DataLoader(DATASET, batch_size=4, drop_last=True),
        f"drop_last=True: {SAMPLER}; leave drop_last out, there is no last batch",
    ),
    "weighted": (
        lambda: DataLoader(DATASET, sampler=WeightedRandomSampler([1.0] * N, N)),
        f"sampler=WeightedRandomSampler: {SAMPLER}; leave the sampler out.",
    ),
    "distributed": (
        lambda: DataLoader(
            DATASET,
            sampler=torch.utils.data.DistributedSampler(DATASET, num_replicas=2, rank=0),
        ),
        f"sampler=DistributedSampler: {SAMPLER}",
    ),
    "replacement": (
        lambda: DataLoader(DATASET, sampler=RandomSampler(DATASET, replacement=True)),
        f"sampler=RandomSampler(replacement=True): {SAMPLER}",
    ),
    "num_samples": (
        lambda: DataLoader(DATASET, sampler=RandomSampler(DATASET, num_samples=5)),
        f"sampler=RandomSampler over 5 records: {SAMPLER}",
    ),
    "own batch sampler": (
        lambda: DataLoader(DATASET, batch_sampler=[[0, 1], [2]]),
        f"batch_sampler=list: {SAMPLER}; give batch_size instead of batch_sampler.",
    ),
    "no batches": (lambda: DataLoader(DATASET, batch_size=None), "batch_sampler=NoneType: "),
    "dropping batch sampler": (
        lambda: DataLoader(
            DATASET, batch_sampler=BatchSampler(SequentialSampler(DATASET), 4, drop_last=True)
        ),
        "drop_last=True: ",
    ),
}


def test_what_was_read_off_is_kept_through_wrappers() -> None:
    said, other = TensorDataset(torch.randn(6, 2)), TensorDataset(torch.randn(4, 2))
    said.also_read = ("the mean was read",)  # type: ignore[attr-defined]
    halves = ConcatDataset([Subset(said, range(3)), Subset(said, range(3, 6)), other])
    for wrapped in (halves, DataLoader(halves), Subset(halves, range(5))):
        assert as_records(wrapped).also_read == ("the mean was read",)
    assert as_records(other).also_read == ()


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_why(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(DataError, match="^" + re.escape(message)) as caught:
        as_records(make())
    assert re.fullmatch(r"[^;]+: [^;]+; .+\.", str(caught.value), re.DOTALL)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (torch.zeros(N, dtype=torch.long), "a single tensor"),
        ([(x, {"label": y, "weight": 1.0}) for x, y in zip(X, Y, strict=True)], "dict as the last"),
        ([{"x": x, "y": (y, y)} for x, y in zip(X, Y, strict=True)], "list as the last part"),
    ],
)
def test_labels_must_be_the_last_tensor_of_a_record(data: Any, found: str) -> None:
    with pytest.raises(DataError, match=f"data={found}.*: must end in one tensor of labels"):
        check_labels(as_records(data), 3)


def test_labels_of_every_flat_form_are_found() -> None:
    labels = torch.arange(N) % 3
    for data in ((X, labels), {"x": X, "y": labels}, list(zip(X, labels, strict=True))):
        check_labels(as_records(data), 3)
        with pytest.raises(DataError, match="labels=int64: must be whole numbers from 0 to 1"):
            check_labels(as_records(data), 2)


def test_parts_of_one_matrix_are_not_repeats() -> None:
    parts = [TensorDataset(X[:6], Y[:6]), TensorDataset(X[6:], Y[6:])]
    assert len(as_records(ConcatDataset(parts))) == len(X)
    chosen = [Subset(TensorDataset(X, Y), [1, 7]), TensorDataset(X[2:7], Y[2:7])]
    assert len(as_records(ConcatDataset(chosen))) == 7
