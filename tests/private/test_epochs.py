"""Loops over epochs, and what is said when no batch is left or no record contributes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steppe
from steppe.errors import DataWarning
from steppe.private import Private


def private_of(inputs: torch.Tensor, **constants: Any) -> Private:
    plan = steppe.Plan(
        **{"noise_multiplier": 1.0, "delta": 1e-3, "population": 60, "batch_size": 25} | constants
    )
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (inputs, torch.randint(2, (len(inputs),)))
    return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def steps_of(batches: Iterator[Any], private: Private) -> int:
    before = private.steps_done
    for batch in batches:
        private.step(batch)
    return private.steps_done - before


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({"epochs": 3}, [2, 2, 3]),  # 2.4 steps each
        ({"epochs": 2.5}, [2, 2, 2]),
        ({"epochs": 3, "batch_size": 60}, [1, 1, 1]),
        ({"steps": 2, "batch_size": 10}, [2]),
    ],
)
def test_epochs_have_all_steps_of_the_plan(constants: dict[str, Any], expected: list[int]) -> None:
    private = private_of(torch.randn(60, 3), **constants)
    assert len(private) == private.plan.total_steps == sum(expected)
    found = [steps_of(private.epoch(), private) for _ in expected]
    assert found == expected
    assert len(private) == 0


def test_an_interrupted_epoch_goes_on_where_it_ended() -> None:
    private = private_of(torch.randn(60, 3), epochs=2, batch_size=15)
    assert steps_of(private.batches(3), private) == 3
    assert steps_of(private.epoch(), private) == 1
    assert steps_of(private.epoch(), private) == 4


def test_an_exhausted_iterator_says_so_once() -> None:
    private = private_of(torch.randn(60, 3), steps=2)
    assert steps_of(iter(private), private) == 2
    with pytest.warns(UserWarning, match="no batch is left: all 2 steps of the plan are taken"):
        assert steps_of(private.epoch(), private) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps_of(iter(private), private) == 0


@pytest.mark.parametrize("batch_size", [14, 25, 45])
def test_an_epoch_of_a_fixed_order_has_every_record_once(batch_size: int) -> None:
    """Also where the population is not a multiple of the batch."""
    inputs = torch.arange(60.0)[:, None].expand(60, 3)
    fixed = {"sampling": steppe.FixedOrder(3), "adjacency": "zero-out"}
    private = private_of(inputs, batch_size=batch_size, **fixed)
    for _ in range(3):
        seen = []
        for batch in private.epoch():
            seen += batch[0][:, 0].tolist()
            private.step(batch)
        assert sorted(seen) == list(range(60))
    assert len(private) == 0


def test_records_that_all_contribute_nothing_are_mentioned_to_their_owner() -> None:
    private = private_of(torch.full((60, 3), torch.nan), steps=5)
    before = private.model.weight.detach().clone()
    with pytest.warns(DataWarning, match="all records of the first 3 steps were left out") as seen:
        steps_of(iter(private), private)
    assert len(seen) == 1
    assert private.steps_done == 5
    assert bool(torch.isfinite(private.model.weight).all())
    assert not torch.equal(private.model.weight, before)  # noise alone
    # Even a filter that makes warnings errors must not end a step because of the records.
    private = private_of(torch.full((60, 3), torch.inf), steps=4)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("error")
        steps_of(iter(private), private)
    assert private.steps_done == 4


def test_one_good_record_is_enough_to_be_silent() -> None:
    inputs = torch.full((60, 3), torch.nan)
    inputs[0] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private = private_of(inputs, steps=5, batch_size=60)
        steps_of(iter(private), private)
