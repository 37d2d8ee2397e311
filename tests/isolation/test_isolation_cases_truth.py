"""The table of cases tells the truth: what is said to mix does, and what is said not to does not.

Measured by autograd alone, in float64, so that what a proof says can be judged by it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from cases_that_do_not import HONEST, HONEST_BY_VALUE
from cases_that_mix import MIXING
from cases_that_mix_by_chance import CASES as BY_CHANCE
from isolation_case import KINDS, Honest, Mixing, batch_of, difference, like, records_of
from isolation_truth import (
    ROUNDING,
    in_double,
    measured,
    moved,
    moved_afterwards,
    what_moves_others,
)

from steppe.randomness.global_generators import global_generators_kept

_VISIBLE = 1e-2
# Beyond the trials: they take no words that no record has, and no other number of random records.
_BEYOND = {"words cut in the table", "drop path by how many stay"}
_BEYOND |= {case.name for case in BY_CHANCE}
_EVERY = [*MIXING, *HONEST, *HONEST_BY_VALUE]


@pytest.fixture(autouse=True)
def seeds_kept() -> Iterator[None]:
    """The state of every random generator comes back, and the same is drawn in every order."""
    with global_generators_kept():
        torch.manual_seed(0)
        yield


def test_names_are_unique_and_there_are_enough_of_each() -> None:
    names = Counter(case.name for case in _EVERY)
    assert [name for name, times in names.items() if times > 1] == []
    assert len(MIXING) >= 35
    assert len(HONEST) >= 40
    assert {case.kind for case in MIXING} == set(KINDS)
    assert {case.kind for case in HONEST} == set(KINDS)
    for case in MIXING:
        assert case.says, case.name
        re.compile(case.says)


def test_a_case_is_the_same_every_time_it_is_made() -> None:
    for case in _EVERY:
        (first, _, one), (second, _, other) = case.make(), case.make()
        assert first is not second
        assert all(map(torch.equal, first.parameters(), second.parameters())), case.name
        assert repr(one) == repr(other), case.name


@pytest.mark.parametrize("case", MIXING, ids=lambda case: case.name)
def test_a_case_that_mixes_shows_it(case: Mixing) -> None:
    one, other = case.shows()
    which = difference(one, other)
    if case.kind == "state":
        assert moved_afterwards(case, one, other) > _VISIBLE
        return
    model, objective, _ = in_double(case)
    before, after = (measured(case, model, objective, batch) for batch in (one, other))
    assert moved(before, after, which) > _VISIBLE


@pytest.mark.parametrize("case", [c for c in MIXING if c.hidden], ids=lambda case: case.name)
def test_records_like_those_of_the_case_do_not_show_what_is_hidden(case: Mixing) -> None:
    case = replace(case, seed=0)
    _, _, batch = case.make()
    found = records_of(batch)
    for which in range(len(found)):
        left = found[:which] + found[which + 1 :]
        for rest in (left, [*found[:which], like(found), *found[which + 1 :]]):
            pair = batch, batch_of(batch, rest)
            before, after = (measured(case, *in_double(case)[:2], some) for some in pair)
            assert moved(before, after, which) < ROUNDING


@pytest.mark.parametrize("case", [*HONEST, *HONEST_BY_VALUE], ids=lambda case: case.name)
def test_a_case_that_does_not_mix_keeps_every_record_alone(case: Honest) -> None:
    model, objective, batch = in_double(case)
    usual = measured(case, model, objective, batch)
    assert usual.together.isfinite().all()
    assert usual.together.any()
    assert what_moves_others(case) is None


@pytest.mark.parametrize(
    "case",
    [case for case in MIXING if not case.hidden and case.name not in _BEYOND],
    ids=lambda case: case.name,
)
def test_the_check_of_honest_cases_notices_those_that_mix(case: Mixing) -> None:
    assert what_moves_others(case) is not None
