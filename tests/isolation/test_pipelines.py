"""A collate function is proven to keep records apart, or refused with operation and line, or left
to be compared."""

from __future__ import annotations

import contextlib
import copy
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases_that_do_not import HONEST
from cases_that_mix import MIXING
from isolation_case import Case, Honest, Mixing, records_of
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

from steppe import Plan, make_private
from steppe.errors import DataError, IsolationError
from steppe.isolation.pipelines import follow_collate
from steppe.randomness import global_state
from steppe.records import as_records

Pairs = list[tuple[Tensor, Tensor]]
Collate = Callable[[list[Any]], Any]

# What can not be followed has the words of the comparison.
SAYS = {
    "standard scores in NumPy": "differ between a record alone and among others",
    "percentiles in NumPy": "differ between a record alone and among others",
    "vocabulary by order": "differ between a record alone and among others",
    "mixup in the batch": r"aten\.index\.Tensor \(cases_that_mix_in_data\.py:\d+\)",
}
PROVEN = {"stacked", "gaps filled by a constant"}


def of_kind(table: Any, kind: str) -> list[Any]:
    return [case for case in table if case.kind == kind]


def loaded(found: Any, collate: Collate | None, workers: int = 0) -> Any:
    return as_records(DataLoader(found, collate_fn=collate, num_workers=workers))


@pytest.mark.parametrize("case", of_kind(MIXING, "collate"), ids=lambda case: case.name)
def test_collate_functions_that_mix_are_refused_at_set_up(case: Mixing) -> None:
    with pytest.raises(DataError, match=SAYS.get(case.name, case.says)):
        loaded(case.make()[2], case.collate)


@pytest.mark.parametrize("case", of_kind(HONEST, "collate"), ids=lambda case: case.name)
def test_collate_functions_that_do_not_mix_are_taken(case: Honest) -> None:
    found = case.make()[2]
    rows = loaded(found, case.collate)
    assert rows.isolation == ("proven" if case.name in PROVEN else "compared")
    for batch in rows.stream([torch.arange(len(found))] * 3):
        assert len(batch[0]) == len(found)


# What is proven, and what is not ----------------------------------------------------------------


def pairs(count: int = 6) -> Pairs:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, generator=generator), torch.tensor(i % 3)) for i in range(count)]


def inputs(found: Pairs) -> Tensor:
    return torch.stack([x for x, _ in found])


def labels(found: Pairs) -> Tensor:
    return torch.stack([y for _, y in found])


def written_one_by_one(found: Pairs) -> Any:
    x = torch.zeros(len(found), 8)
    for place, (own, _) in enumerate(found):
        x[place] = own
    return x, labels(found)


def written_and_centred(found: Pairs) -> Any:
    x, y = written_one_by_one(found)
    return x - x.mean(0), y


def padded_and_centred(found: Pairs) -> Any:
    x = pad_sequence([own for own, _ in found], batch_first=True)
    return x - x.mean(0), labels(found)


def divided_by_the_number(found: Pairs) -> Any:
    return inputs(found) / len(found), labels(found)


def centred_in_large_batches(found: Pairs) -> Any:
    x = inputs(found)
    return x - x.mean(0) if len(found) > 50 else x, labels(found)


def numbered(found: Pairs) -> Any:
    return torch.stack([x + place for place, (x, _) in enumerate(found)]), labels(found)


def with_places(found: Pairs) -> Any:
    return inputs(found), torch.arange(len(found))


def backwards(found: Pairs) -> Any:
    return inputs(found[::-1]), labels(found[::-1])


def a_look_at_all(found: Pairs) -> Any:
    x = inputs(found)
    return (x if torch.isfinite(x).all() else x.nan_to_num()), labels(found)


def a_look_that_hides(found: Pairs) -> Any:
    x = inputs(found)
    with contextlib.suppress(Exception):
        if x.max() > 100:
            x = x / 255
    return x, labels(found)


def centred_after_a_look(found: Pairs) -> Any:
    y = torch.tensor([int(y) for _, y in found])
    x = inputs(found)
    return x - x.mean(0), y


_kept: list[Tensor] = []


def remembered(found: Pairs) -> Any:
    x = inputs(found)
    _kept.append(x)
    return (x + _kept[0].sum() if len(_kept) > 1 else x), labels(found)


_memory = torch.zeros(64, 8)


def into_a_memory(found: Pairs) -> Any:
    _memory[: len(found)] = inputs(found)
    return _memory[: len(found)].clone(), labels(found)


def noisy(found: Pairs) -> Any:
    return inputs(found) + torch.randn(len(found), 8), labels(found)


def some_of_each(found: Pairs) -> Any:
    return torch.stack([x[x > 0].sum() for x, _ in found]), labels(found)


def through_numpy(found: Pairs) -> Any:
    return torch.as_tensor(np.stack([x.numpy() for x, _ in found])), labels(found)


def padded_through_numpy(found: Pairs) -> Any:
    x = pad_sequence([own for own, _ in found], batch_first=True).numpy()
    return torch.as_tensor(x - x.mean(0)), labels(found)


def written_and_listed(found: Pairs) -> Any:
    x, y = written_one_by_one(found)
    return torch.tensor(x.tolist()), y


def written_and_copied(found: Pairs) -> Any:
    x, y = copy.deepcopy(written_one_by_one(found))
    return x, y


def padded(found: Pairs) -> Any:
    return torch.stack([F.pad(x, (0, 12 - len(x))) for x, _ in found]), labels(found)


HERE = r"\(test_pipelines\.py:\d+\)"


@pytest.mark.parametrize(
    ("collate", "says"),
    [
        (written_and_centred, rf"mixes records in aten\.mean\.dim {HERE}"),
        (padded_and_centred, rf"mixes records in aten\.mean\.dim {HERE}"),
        (centred_in_large_batches, rf"mixes records in aten\.mean\.dim {HERE}"),
        (centred_after_a_look, rf"mixes records in aten\.mean\.dim {HERE}"),
        (divided_by_the_number, "uses the number of records in div"),
        (numbered, "uses the number of records in add"),
        (with_places, "counts places"),
        (backwards, "gives rows of other records"),
        (a_look_at_all, rf"reads in item\(\), bool\(\) or float\(\) {HERE}"),
        (a_look_that_hides, rf"reads in item\(\), bool\(\) or float\(\) {HERE}"),
        (remembered, rf"keeps records in a tensor {HERE}"),
        (into_a_memory, rf"keeps records in aten\.copy_ {HERE}"),
    ],
)
def test_records_that_meet_are_refused(collate: Collate, says: str) -> None:
    _kept.clear()
    with pytest.raises(DataError, match=f"^collate_fn={says}"):
        follow_collate(collate, pairs())
    _kept.clear()


@pytest.mark.parametrize("collate", [default_collate, written_one_by_one, padded])
def test_operations_of_torch_are_proven(collate: Collate) -> None:
    assert follow_collate(collate, pairs())


@pytest.mark.parametrize(
    "collate",
    [
        noisy,
        some_of_each,
        through_numpy,
        padded_through_numpy,
        written_and_listed,
        written_and_copied,
    ],
)
def test_what_is_not_followed_is_not_proven(collate: Collate) -> None:
    assert not follow_collate(collate, pairs())


def test_nothing_is_proven_of_records_that_are_no_tensors_or_of_several_forms() -> None:
    lengths = [(x[: 8 - i], y) for i, (x, y) in enumerate(pairs())]
    assert not follow_collate(padded, lengths)
    assert not follow_collate(default_collate, [(x, 1) for x, _ in pairs()])
    assert not follow_collate(default_collate, [(x.numpy(), y) for x, y in pairs()])
    assert follow_collate(default_collate, [{"x": x, "y": [y]} for x, y in pairs()])


def test_records_that_meet_beside_numbers_and_texts_are_refused() -> None:
    def centred(found: list[Any]) -> Any:
        x = torch.stack([x for x, _ in found])
        return x - x.mean(0), torch.tensor([len(text) for _, text in found])

    with pytest.raises(DataError, match=r"mixes records in aten\.mean\.dim"):
        follow_collate(centred, [(x, "text" * i) for i, (x, _) in enumerate(pairs())])


def test_generators_and_attributes_are_left_as_they_were() -> None:
    class Counts:
        def __init__(self) -> None:
            self.seen: list[Any] = []
            self.last: Any = None

        def __call__(self, found: Pairs) -> Any:
            self.last = noisy(found)
            self.seen.append(self.last)
            random.random()
            np.random.rand()
            return self.last

    collate = Counts()
    before = global_state()
    follow_collate(collate, pairs())
    assert collate.seen == []
    assert collate.last is None
    assert global_state() == before


def test_errors_are_sentences() -> None:
    with pytest.raises(DataError) as caught:
        follow_collate(padded_and_centred, pairs())
    assert re.sub(r":\d+", ":1", str(caught.value)) == (
        "collate_fn=mixes records in aten.mean.dim (test_pipelines.py:1): must make every row of "
        "the batch from one record; work on each record by itself, or use constants that are fixed "
        "beforehand."
    )


# Random views ---------------------------------------------------------------------------------


def private(case: Case) -> Any:
    model, _, batch = case.make()
    found = [torch.cat(column) for column in zip(*records_of(batch), strict=True)]
    plan = Plan(epsilon=8.0, delta=1e-3, population=len(found[0]), batch_size=3, steps=2, views=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(
        model, optimizer, tuple(found), plan, loss=F.cross_entropy, augment=case.augment
    )


@pytest.mark.parametrize("case", of_kind(MIXING, "augment"), ids=lambda case: case.name)
def test_views_that_mix_are_refused(case: Mixing) -> None:
    with pytest.raises(IsolationError, match=case.says):
        private(case)


@pytest.mark.parametrize("case", of_kind(HONEST, "augment"), ids=lambda case: case.name)
def test_views_that_do_not_mix_are_taken(case: Honest) -> None:
    made = private(case)
    for batch in made:
        made.step(batch)
    assert made.steps_done == 2
