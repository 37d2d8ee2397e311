"""What is not proven of a collate function is compared in every batch, at the cost of a record."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from steppe import Plan, make_private
from steppe.errors import DataError
from steppe.randomness import global_state
from steppe.records import Records, as_records
from steppe.records.batch_form import difference
from steppe.records.collate_check import Compared, ReadTwice, Refused
from steppe.utils.record_form import all_of_form, form_of

N = 64
SECRET = 7919.0
Collate = Callable[[list[Any]], Any]
WORKERS = pytest.mark.parametrize("workers", [0, 2])
MIXED = (
    "data[0]=rows that differ between a record alone and among others: must be made by collate_fn "
    "from one record each, in the order given; move random operations into the data set, and "
    "replace statistics of several records by constants."
)


class Rows(Dataset[Any]):
    """Records of which one is unusual, and is not read at set-up."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        x = np.full(4, row, dtype=np.float32)
        x[0] = SECRET if row == 9 else 0.5
        return x, row


def stacked(found: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(np.stack([x for x, _ in found])), torch.tensor([y for _, y in found])


def centred_if_large(found: list[Any]) -> tuple[Tensor, Tensor]:
    x = np.stack([x for x, _ in found])
    if x.max() > 100:
        x = x - x.mean(0)
    return torch.as_tensor(x), torch.tensor([y for _, y in found])


def fails_alone(found: list[Any]) -> tuple[Tensor, Tensor]:
    if len(found) == 1 and found[0][0].max() > 100:
        raise ValueError(f"{found[0]} alone")
    return stacked(found)


class Counting:
    """Collates, and remembers of how many records."""

    def __init__(self, collate: Collate = stacked) -> None:
        self.collate = collate
        self.sizes: list[int] = []

    def __call__(self, found: list[Any]) -> Any:
        self.sizes.append(len(found))
        return self.collate(found)


def loaded(collate: Collate, workers: int = 0, data: Any = None) -> Records:
    return as_records(DataLoader(data or Rows(), collate_fn=collate, num_workers=workers))


# Errors ----------------------------------------------------------------------------------------


@WORKERS
def test_the_first_batch_that_shows_it_is_not_handed_out(workers: int) -> None:
    data = loaded(centred_if_large, workers)
    assert data.isolation == "compared"
    usual = torch.tensor([1, 2, 3])
    stream = data.stream([usual, usual, torch.tensor([8, 9, 10]), usual])
    assert [next(stream)[1].tolist() for _ in range(2)] == [[1, 2, 3]] * 2
    with pytest.raises(DataError) as caught:
        next(stream)
    assert str(caught.value) == MIXED
    assert caught.value.__cause__ is None
    with pytest.raises(DataError, match="differ between a record alone and among others"):
        data.batch(torch.tensor([8, 9, 10]))


def test_a_record_that_can_not_be_collated_alone_shows_no_value() -> None:
    data = loaded(fails_alone)
    with pytest.raises(DataError) as caught:
        list(data.stream([torch.tensor([8, 9])] * 200))
    assert str(caught.value) == MIXED.replace("data[0]", "data")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_one_row_in_which_others_show_is_found_when_it_is_drawn() -> None:
    def gaps(found: list[Any]) -> tuple[Tensor, Tensor]:
        x = np.stack([x for x, _ in found])
        x[x > 100] = x.mean()
        return torch.as_tensor(x), torch.tensor([y for _, y in found])

    data = loaded(gaps)
    with pytest.raises(DataError, match="differ between"):  # but less than once in 10⁷ runs
        list(data.stream([torch.arange(6, 30)] * 400))


def test_an_empty_batch_and_one_record_have_nothing_to_be_compared_with() -> None:
    collate = Counting()
    data = loaded(collate)
    collate.sizes.clear()
    assert len(data.batch(torch.tensor([], dtype=torch.int64))[0]) == 0
    assert data.batch(torch.tensor([9]))[1].tolist() == [9]
    assert collate.sizes == [1]


def drawing(found: list[Any]) -> tuple[Tensor, Tensor]:
    random.random()
    return stacked(found)


def test_random_numbers_are_refused_where_rows_must_be_compared() -> None:
    with pytest.raises(DataError) as caught:
        loaded(drawing)
    assert str(caught.value) == (
        "collate_fn=draws random numbers: must not, because a record collated alone could not be "
        "compared with its row; draw them in the data set."
    )


# What it costs ---------------------------------------------------------------------------------


def test_a_batch_costs_one_record_more() -> None:
    collate = Counting()
    data = loaded(collate)
    collate.sizes.clear()
    list(data.stream([torch.arange(30)] * 3))
    assert collate.sizes == [1, 30] * 3


def tensors(found: list[Any]) -> tuple[Tensor, Tensor]:
    padded = [torch.nn.functional.pad(x, (0, 8 - len(x))) for x, _ in found]
    return torch.stack(padded), torch.stack([y for _, y in found])


@pytest.mark.parametrize("form", [tuple, list, lambda pair: {0: pair[0], 1: pair[1]}])
def test_what_is_proven_costs_nothing_more(form: Any) -> None:
    pairs = [form((torch.randn(4), torch.tensor(row))) for row in range(N)]
    pairs[9] = form((torch.randn(6), torch.tensor(9)))
    collate = Counting(lambda found: tensors([(one[0], one[1]) for one in found]))
    data = loaded(collate, data=pairs)
    assert data.isolation == "proven"
    collate.sizes.clear()
    list(data.stream([torch.arange(10, 40)] * 3))
    assert collate.sizes == [30] * 3
    # A record of another form than those that the proof is about.
    data.batch(torch.arange(8, 12))
    assert collate.sizes == [30] * 3 + [1, 4]


def test_torchs_own_collate_function_is_not_compared() -> None:
    data = as_records(DataLoader(Rows()))
    assert data.isolation == "proven"
    assert as_records(torch.zeros(3, 2)).isolation == "proven"


FORMS: list[Any] = [
    torch.zeros(3),
    (torch.zeros(3), torch.zeros(())),
    [torch.zeros(3), torch.zeros(())],
    (torch.zeros(3), torch.zeros((), dtype=torch.int64)),
    (torch.zeros(4), torch.zeros(())),
    (torch.zeros(3, requires_grad=True), torch.zeros(())),
    (torch.zeros(3), 1),
    (torch.zeros(3), None),
    (torch.zeros(3),),
    {"x": torch.zeros(3)},
    {"y": torch.zeros(3)},
    {"x": torch.zeros(3), "y": (torch.zeros(2), torch.zeros(2))},
    "text",
    torch.nn.Parameter(torch.zeros(3)),
]


def test_the_form_of_many_records_is_looked_at_as_that_of_each() -> None:
    for one in FORMS:
        form = form_of(one)
        if form is None:
            continue
        for other in FORMS:
            assert all_of_form([one, other, one], form) == (form_of(other) == form)


# Which record, and what is left as it was ----------------------------------------------------


def test_which_record_is_compared_is_not_decided_by_seeds() -> None:
    alone: list[int] = []

    def noting(found: list[Any]) -> tuple[Tensor, Tensor]:
        if len(found) == 1:
            alone.append(found[0][1])
        return stacked(found)

    collate = Compared(noting)
    found = [Rows()[row] for row in range(8)]
    for _ in range(4000):
        torch.manual_seed(0)
        random.seed(0)
        collate(found)
    times = Counter(alone)
    assert sum(times.values()) == 4000
    # Expected 500 each with a deviation of 21; further than 6 less than once in 10⁸ runs.
    assert all(abs(times[row] - 500) < 126 for row in range(8))


def test_the_generators_are_as_the_batch_alone_leaves_them() -> None:
    def draws(found: list[Any]) -> tuple[Tensor, Tensor]:
        torch.rand(3)
        random.gauss(0, 1)
        return stacked(found)

    def after(collate: Collate) -> list[float]:
        torch.manual_seed(0)
        random.seed(0)
        collate([Rows()[row] for row in range(5)])
        return [float(torch.rand(())), random.gauss(0, 1)]

    assert after(Compared(draws)) == after(draws)


def test_reading_a_record_again_takes_no_random_numbers() -> None:
    class Draws(Rows):
        def __getitems__(self, rows: list[int]) -> Any:
            return torch.rand(len(rows)), np.random.normal(size=len(rows)), random.gauss(0, 1)

    def drawn(data: Any) -> Any:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        data.__getitems__([1, 2, 3])
        return float(torch.rand(())), random.gauss(0, 1), np.random.normal()

    assert drawn(ReadTwice(Draws())) == drawn(Draws())


def test_the_generators_of_a_private_loop_come_back() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = Plan(epsilon=8.0, delta=1e-3, population=N, batch_size=9, steps=3)
    loader = DataLoader(Rows(), collate_fn=stacked)
    private = make_private(model, optimizer, loader, plan, objective=squares)
    before = global_state()
    for batch in private:
        assert global_state() == before
        private.step(batch)
    assert global_state() == before


def squares(model: torch.nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(batch[0]).square().mean(1)
    return found


def test_a_collate_function_may_write_to_its_records_and_to_one_memory() -> None:
    memory = torch.zeros(8, 4)

    def doubled(found: list[Any]) -> tuple[Tensor, Tensor]:
        for place, (x, _) in enumerate(found):
            x *= 2
            memory[place] = torch.as_tensor(x)
        return memory[: len(found)], torch.tensor([y for _, y in found])

    for _ in range(20):
        x, y = Compared(doubled)([Rows()[row] for row in range(5)])
        assert x[:, 1].tolist() == [0, 2, 4, 6, 8]
        assert y.tolist() == [0, 1, 2, 3, 4]


def test_workers_of_any_kind_can_take_it() -> None:
    def sent(something: Any) -> Any:
        return pickle.loads(pickle.dumps(something))  # noqa: S301 - made here

    collate = sent(Compared(centred_if_large, form_of(torch.zeros(2))))
    refused = sent(collate([Rows()[8], Rows()[9]]))
    assert isinstance(refused, Refused)
    assert str(refused.error) == MIXED
    assert len(sent(ReadTwice(Rows()))) == N


# Data sets that make whole batches -----------------------------------------------------------


class Whole(Rows):
    """A bulk way that gives the batch itself."""

    opened = 0

    def __getitems__(self, rows: list[int]) -> Any:
        return centred_if_large([self[row] for row in rows])


def open_file(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.opened += 1
    assert info.dataset.opened == 1


@WORKERS
def test_batches_that_a_data_set_makes_are_compared_too(workers: int) -> None:
    loader = DataLoader(
        Whole(), collate_fn=lambda batch: batch, num_workers=workers, worker_init_fn=open_file
    )
    data = as_records(loader)
    assert data.isolation == "compared"
    stream = data.stream([torch.arange(3), torch.tensor([4]), torch.tensor([8, 9, 10])])
    assert next(stream)[1].tolist() == [0, 1, 2]
    assert next(stream)[1].tolist() == [4]
    with pytest.raises(DataError) as caught:
        next(stream)
    assert str(caught.value) == MIXED


def test_a_bulk_way_that_turns_to_whole_batches_is_refused() -> None:
    class Turns(Rows):
        def __getitems__(self, rows: list[int]) -> Any:
            found = [self[row] for row in rows]
            return found if 0 in rows else stacked(found)

    data = loaded(lambda found: stacked(found) if type(found) is list else found, data=Turns())
    with pytest.raises(DataError, match="data=structure that is not the same in every batch"):
        data.batch(torch.tensor([1, 2]))


# What counts as equal --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "alone", "equal"),
    [
        ([1.0, torch.nan, torch.inf], [1.0, torch.nan, torch.inf], True),
        ([1.0, 0.0], [1.0 + 1e-6, 0.0], True),
        ([1.0, 0.0], [1.0 + 1e-5, 0.0], False),
        ([1e9, 0.0], [1e9, 1e-6], False),
        ([torch.inf], [1.0], False),
        ([1.0], [torch.inf], False),
        ([torch.nan], [1.0], False),
        ([torch.inf], [-torch.inf], False),
        ([True], [False], False),
        ([16777216], [16777217], False),
    ],
)
def test_rows_are_equal_up_to_rounding(row: list[Any], alone: list[Any], equal: bool) -> None:
    batch = torch.stack([torch.zeros_like(torch.tensor(row)), torch.tensor(row)])
    assert (difference((batch,), (torch.tensor([alone]),), 1) is None) == equal
    if batch.is_floating_point() and equal and row != alone:
        assert difference((batch.bfloat16(),), (torch.tensor([alone]).bfloat16(),), 1) is None
