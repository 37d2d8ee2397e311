"""Samplers in which records take turns: who takes part in which step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from steppe.accounting import Participation
from steppe.noise import SecureSource
from steppe.sampling import CyclicPoisson, FixedOrder


def steps_of(sampler: Any, records: int, batch_size: float, steps: int) -> list[list[int]]:
    """For each record the steps that it takes part in."""
    draw = sampler.begin(records, records, batch_size, None)
    found: list[list[int]] = [[] for _ in range(records)]
    for step in range(steps):
        rows = draw(step, SecureSource())
        assert rows.dtype == torch.int64
        assert torch.equal(rows, rows.sort().values)
        for row in rows.tolist():
            found[row].append(step)
    return found


@pytest.mark.parametrize(("records", "batch_size"), [(60, 6), (61, 6), (65, 6), (10, 10), (7, 1)])
def test_every_record_takes_part_once_in_an_epoch(records: int, batch_size: float) -> None:
    sampler = FixedOrder(epochs=3)
    steps = sampler.length(records, batch_size)
    turns = sampler.turns(records, batch_size, steps)
    for taken in steps_of(sampler, records, batch_size, steps):
        assert len(taken) == 3 == turns.times
        assert np.diff(taken).tolist() == [turns.separation] * 2
    draw = sampler.begin(records, records, batch_size, None)
    sizes = [len(draw(step, SecureSource())) for step in range(steps)]
    assert max(sizes) - min(sizes) <= 1


def test_the_order_is_shuffled_and_repeats() -> None:
    one, two = FixedOrder(2), FixedOrder(2, order=1)
    first, other = (s.begin(100, 100, 10, None) for s in (one, two))
    assert not torch.equal(first(0, SecureSource()), torch.arange(10))
    assert not torch.equal(first(0, SecureSource()), other(0, SecureSource()))
    again = FixedOrder(2).begin(100, 100, 10, None)
    for step in range(20):
        assert torch.equal(first(step, SecureSource()), again(step, SecureSource()))
        assert torch.equal(first(step, SecureSource()), first((step + 10) % 20, SecureSource()))
    # The same on every machine.
    assert first(0, SecureSource()).tolist() == FIRST


FIRST = [1, 6, 15, 19, 34, 42, 48, 66, 67, 78]


def test_a_batch_that_is_changed_does_not_change_the_next_epoch() -> None:
    draw = FixedOrder(2).begin(20, 20, 5, None)
    draw(0, SecureSource()).zero_()
    assert draw(4, SecureSource()).unique().numel() == 5


def test_parts_take_turns() -> None:
    sampler = CyclicPoisson(4)
    counts = np.zeros(80)
    for _ in range(5):
        for row, taken in enumerate(steps_of(sampler, 80, 10, 40)):
            assert len({step % 4 for step in taken}) <= 1
            counts[row] += len(taken)
    # 50 coins of rate 1/2 each: 25 on average, 3.5 standard deviation.
    assert 25 - 20 <= counts.min() <= counts.max() <= 25 + 20
    assert abs(counts.mean() - 25) < 5 * 3.5 / 80**0.5
    assert sampler.turns(80, 10, 40) == Participation(10, 4, exact=False)
    assert sampler.rates(80, 10, 0, 40) == ((10, (0.5,)),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedOrder(0), r"FixedOrder\.epochs=0: must be a whole number of at least 1"),
        (lambda: FixedOrder(2.0), r"FixedOrder\.epochs=2\.0: must be a whole number"),  # type: ignore[arg-type]
        (lambda: FixedOrder(2, order="a"), r"FixedOrder\.order='a': must be a whole number"),  # type: ignore[arg-type]
        (lambda: CyclicPoisson(0), r"CyclicPoisson\.parts=0: must be a whole number"),
        (lambda: CyclicPoisson(2, order=0.5), r"CyclicPoisson\.order=0\.5: must be"),  # type: ignore[arg-type]
        (lambda: FixedOrder(1).begin(4, 4, 2, ([0], [1])), r"groups='tuple': cannot be used with"),
        (lambda: CyclicPoisson(1).begin(4, 4, 2, ([0], [1])), r"cannot be used with CyclicPoisson"),
    ],
)
def test_bad_constants_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
