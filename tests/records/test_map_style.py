"""A collate function keeps records apart, and errors while reading never look like the end."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from steppe.errors import DataError
from steppe.records import Records, as_records

N = 40
Collate = Callable[[list[Any]], Any]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Sequences(Dataset[Any]):
    """Sequences of the given lengths, and what was read of them."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return torch.full((self.lengths[row],), float(row)), row


def loaded(data: Any, collate: Collate | None, workers: int = 0) -> Records:
    return as_records(DataLoader(data, batch_size=4, collate_fn=collate, num_workers=workers))


def stacked(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def longest(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        pad_sequence([x for x, _ in items], batch_first=True),
        torch.tensor([y for _, y in items]),
    )


def fixed(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = longest([(torch.zeros(9), 0), *items])
    return x[1:], y[1:]


def centred(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = stacked(items)
    return x - x.mean(0), y


def mixed(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = stacked(items)
    return 0.9 * x + 0.1 * x.roll(1, 0), y


def shuffled(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return stacked(items[::-1])


def arrays(items: list[Any]) -> list[Any]:
    return [x.numpy() for x, _ in items]


def arrays_centred(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x = np.stack(arrays(items))
    return torch.as_tensor(x - x.mean(0)), stacked(items)[1]


def arrays_shuffled(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(np.stack(arrays(items[::-1]))), stacked(items[::-1])[1]


def noisy(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = stacked(items)
    return x + torch.randn_like(x), y


def doubled(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return stacked(items if len(items) == 1 else [*items, *items])


def halved(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return stacked(items[: max(1, len(items) // 2)])


def typed(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = stacked(items)
    return (x if len(items) == 1 else x.double()), y


def counted(items: list[Any]) -> Any:
    x, y = stacked(items)
    return (x, y) if len(items) == 1 else (x, y, y)


EQUAL = [5] * N
VARIED = [1 + row % 7 for row in range(N)]
ONE_LONG = [*([4] * (N - 1)), 400]
LENGTH = (
    "data[0]=shape or type that is not the same in every batch: must be the same in every "
    "batch, because a long record would change all others; pad to a fixed length in the data set "
    "or in collate_fn."
)
MIXED = (
    "data[0]=rows that differ between a record alone and among others: must be made by collate_fn "
    "from one record each, in the order given; move random operations into the data set, and "
    "replace statistics of several records by constants."
)
ROWS = (
    "data[0]=tensor with more or fewer rows than records: must have one row for each record that "
    "was drawn, because a record with k rows is protected k times less; let collate_fn return "
    "every record once."
)


@pytest.mark.parametrize(
    ("lengths", "collate", "message"),
    [
        (VARIED, longest, LENGTH),
        (ONE_LONG, longest, LENGTH),
        (EQUAL, typed, LENGTH),
        (EQUAL, counted, LENGTH.replace("data[0]=shape or type", "data=structure")),
        (EQUAL, arrays_centred, MIXED),
        (EQUAL, arrays_shuffled, MIXED),
        (EQUAL, noisy, MIXED),
        (EQUAL, doubled, ROWS),
        (EQUAL, halved, ROWS),
    ],
)
def test_records_that_touch_are_refused_at_once(
    lengths: list[int], collate: Collate, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        loaded(Sequences(lengths), collate)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("collate", "says"),
    [
        (centred, r"mixes records in aten\.mean\.dim \(test_map_style\.py:\d+\): "),
        (mixed, r"mixes records in aten\.add\.Tensor \(test_map_style\.py:\d+\): "),
        (shuffled, "gives rows of other records: "),
    ],
)
def test_records_that_touch_in_torch_are_refused_with_the_line(collate: Collate, says: str) -> None:
    for lengths in (EQUAL, EQUAL[:1]):
        with pytest.raises(DataError, match=f"^collate_fn={says}"):
            loaded(Sequences(lengths), collate)


def test_fixed_length_is_fine() -> None:
    data = loaded(Sequences(VARIED), fixed)
    x, y = data.batch(torch.tensor([6, 1, 30]))
    assert x.shape == (3, 9)
    assert y.tolist() == [6, 1, 30]


class OnlyLarge:
    """Behaves for the records tried at set-up and not in the batches of a step."""

    def __init__(self, then: Collate) -> None:
        self.then = then

    def __call__(self, items: list[Any]) -> Any:
        return stacked(items) if len(items) <= 16 else self.then(items)


@WORKERS
@pytest.mark.parametrize("then", [doubled, halved])
def test_rows_of_every_batch_are_counted(workers: int, then: Collate) -> None:
    data = loaded(Sequences(EQUAL), OnlyLarge(then), workers)
    few, many = torch.arange(7), torch.arange(30)
    stream = data.stream([few, many])
    assert len(next(stream)[0]) == 7
    with pytest.raises(DataError) as caught:
        next(stream)
    assert str(caught.value) == ROWS
    with pytest.raises(DataError, match="more or fewer rows"):
        data.batch(many)


def test_the_shape_of_every_batch_is_checked() -> None:
    """A long record that was not among those tried is found when it is drawn."""
    lengths = list(EQUAL)
    lengths[1] = 6
    data = loaded(Sequences(lengths), longest)
    for _ in range(8):  # whichever of the two is compared
        with pytest.raises(DataError) as caught:
            data.batch(torch.tensor([0, 1]))
        assert str(caught.value) == LENGTH


class DropsSome(Sequences):
    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self[row] for row in rows if row != 3]


def test_a_bulk_way_that_drops_records_is_refused() -> None:
    data = as_records(DropsSome(EQUAL))
    with pytest.raises(DataError, match="more or fewer rows than records"):
        data.batch(torch.tensor([2, 3]))


class Collated(Sequences):
    """A bulk way that gives the batch itself."""

    def __getitems__(self, rows: list[int]) -> Any:
        return stacked([self[row] for row in rows])


class RandomReading(Sequences):
    def __getitem__(self, row: int) -> Any:
        return torch.randn(5), row


class NotNumbers(Sequences):
    def __getitem__(self, row: int) -> Any:
        return torch.tensor([math.nan, math.inf, float(row)]), row


def consuming(items: list[Any]) -> dict[str, torch.Tensor]:
    """Takes its records apart, as collate functions of tokenisers do."""
    labels = [item.pop("y") for item in items]
    return {"x": torch.stack([item["x"] for item in items]), "y": torch.tensor(labels)}


def test_ways_of_reading_that_are_fine() -> None:
    rows = torch.tensor([8, 2])
    assert loaded(Collated(EQUAL), lambda batch: batch).batch(rows)[1].tolist() == [8, 2]
    assert loaded(RandomReading(EQUAL), stacked).batch(rows)[1].tolist() == [8, 2]
    assert loaded(NotNumbers(EQUAL), stacked).batch(rows)[1].tolist() == [8, 2]
    dicts = [{"x": torch.ones(3), "y": row} for row in range(N)]
    assert loaded(dicts, consuming).batch(rows)["y"].tolist() == [8, 2]
    assert loaded(Sequences([5]), stacked).batch(torch.tensor([0]))[1].tolist() == [0]


@pytest.mark.parametrize(("collate", "most"), [(None, 1), (stacked, 16)])
def test_what_is_read_at_set_up(collate: Collate | None, most: int) -> None:
    data = Sequences(EQUAL)
    loaded(data, collate)
    assert data.read[0] == 0
    assert len(set(data.read)) == len(data.read) == most
    assert most == 1 or data.read[-1] == N - 1


class Flaky(Dataset[Any]):
    """Fails on a row that is not read at set-up, until told otherwise."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.broken = error, torch.ones(()).share_memory_()

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        if row == 8 and self.broken:
            raise self.error
        return torch.full((3,), float(row)), row


DRAWS = [torch.tensor(rows, dtype=torch.int64) for rows in ([1], [], [2, 8], [], [3], [8], [])]


@WORKERS
@pytest.mark.parametrize("collate", [None, stacked])
@pytest.mark.parametrize("error", [OSError("no disk"), StopIteration("over"), KeyError("x")])
def test_reading_goes_on_after_an_error(
    workers: int, collate: Collate | None, error: Exception
) -> None:
    source = Flaky(error)
    data = loaded(source, collate, workers)
    found: list[Any] = []
    wanted = DataError if isinstance(error, StopIteration) else type(error)
    for attempt in range(3):
        if attempt == 2:
            source.broken.zero_()
        stream = data.stream(iter(DRAWS[len(found) :]))
        expected = contextlib.nullcontext() if attempt == 2 else pytest.raises(wanted)
        with expected:
            found.extend(batch[1].tolist() for batch in stream)
    assert found == [rows.tolist() for rows in DRAWS]


def test_workers_end_with_an_error_that_is_kept() -> None:
    data = loaded(Flaky(OSError("no disk")), None, 2)
    with pytest.raises(OSError, match="no disk") as kept:
        list(data.stream(DRAWS))
    assert multiprocessing.active_children() == []
    assert kept.value.__traceback__ is not None
    data = loaded(Sequences(EQUAL), OnlyLarge(doubled), 2)
    with pytest.raises(DataError, match="more or fewer rows") as kept_too:
        list(data.stream([torch.arange(30)]))
    assert multiprocessing.active_children() == []
    assert kept_too.value.__traceback__ is not None


@WORKERS
def test_stop_iteration_is_not_the_end(workers: int) -> None:
    data = loaded(Flaky(StopIteration()), None, workers)
    for ask in (lambda: list(data.stream(DRAWS)), lambda: data.batch(DRAWS[2])):
        with pytest.raises(DataError) as caught:
            ask()
        assert str(caught.value) == (
            "data=StopIteration while reading: must return every record that is requested; raise "
            "another error in the data set or collate_fn if a record cannot be read."
        )


def test_stop_iteration_is_not_the_end_of_other_records() -> None:
    class Own(Records):
        def __len__(self) -> int:
            return 3

        def batch(self, rows: torch.Tensor) -> Any:
            raise StopIteration

    with pytest.raises(RuntimeError):
        list(Own().stream(DRAWS))


@WORKERS
def test_ragged_records_are_refused_without_their_lengths(workers: int) -> None:
    """torch's own error says which entry has which length."""
    data = as_records(DataLoader(Sequences([4, 4, 7919, 4]), num_workers=workers))
    drawn = [torch.tensor([0, 1]), torch.tensor([1, 2, 3])]
    batches = data.stream(drawn)
    assert next(batches)[0].shape == (2, 4)
    with pytest.raises(DataError, match="must all have the same structure, shapes") as caught:
        next(batches)
    told = str(caught.value) + str(caught.value.__cause__)
    assert "7919" not in told
    assert "entry" not in told
    if not workers:
        with pytest.raises(DataError, match=r"data=records of several forms \(RuntimeError\)"):
            data.batch(drawn[1])
