"""What a ledger refuses, and that a refusal leaves no trace in it."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_cases import DATA, charge, plan

from steppe import Plan
from steppe.errors import BudgetExhausted, ConfigurationError, SteppeError
from steppe.ledger import Anchor, Ledger


def test_a_budget_is_not_for_runs_with_known_noise(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=9.0, delta=1e-5)
    message = r"not_private_reason='seeded': makes epsilon infinite, and the ledger allows 9;"
    with pytest.raises(ConfigurationError, match=message):
        ledger.begin(plan(), DATA, block=8, not_private_reason="seeded")
    run = charge(ledger, 1)
    size = ledger.path.stat().st_size
    again = {"block": 8, "anchor": Anchor(), "not_private_reason": "seeded"}
    for one in (ledger, Ledger(ledger.path)):  # also where the budget is not mentioned again
        with pytest.raises(ConfigurationError, match=message):
            one.begin(plan(), DATA, block=8, not_private_reason="seeded")
        with pytest.raises(ConfigurationError, match=message):
            one.resume(run, plan(), DATA, **again)  # type: ignore[arg-type]
    assert ledger.path.stat().st_size == size
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(8)


@pytest.mark.parametrize(
    ("budget", "block", "reason", "message"),
    [
        (0.1, 8, None, "This run and all before it would cost"),
        (20.0, 0, None, "block=0"),
        (20.0, 8, "seeded", "makes epsilon infinite"),
    ],
)
def test_a_first_run_that_is_refused_settles_nothing(
    tmp_path: Path, budget: float, block: int, reason: str | None, message: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    refused = plan(adjacency="replace-one", unit="user")
    with pytest.raises(SteppeError, match=message):
        Ledger(path, epsilon=budget, delta=1e-5).begin(
            refused, {"name": "others"}, block=block, not_private_reason=reason
        )
    # Other data, neighbours, unit and budget: none of them was written down.
    charge(Ledger(path, epsilon=9.0, delta=1e-5), 1)


def test_a_run_at_whose_delta_nothing_could_be_added_up_is_refused(ledger: Ledger) -> None:
    small, usual = (plan(steps=1200, noise_multiplier=3.0, delta=delta) for delta in (1e-12, 1e-5))
    with ledger.begin(small, DATA, block=600) as account:
        account.cover(1)
        run = account.run.id
    size = ledger.path.stat().st_size
    with pytest.raises(ConfigurationError, match=r"delta=1e-12: must be at least 1.1e-12 for this"):
        ledger.begin(replace(small, steps=1800), DATA, block=600)
    assert ledger.path.stat().st_size == size
    charge(ledger, 1200, block=1200, of=usual)
    # What was begun goes on all the same: it is paid for in part, and has an ε of its own.
    with ledger.resume(run, small, DATA, block=600, anchor=Anchor()) as account:
        account.cover(1200)
    assert math.isfinite(ledger.epsilon(1e-5))


def test_another_plan_or_other_data_are_refused(ledger: Ledger) -> None:
    run = charge(ledger, 1)
    with pytest.raises(ConfigurationError, match="is not the plan of this run"):
        ledger.resume(run, plan(steps=30), DATA, block=8, anchor=Anchor())
    with pytest.raises(ConfigurationError, match="are not the data of this run"):
        ledger.resume(run, plan(), {**DATA, "population": 1001}, block=8, anchor=Anchor())


@pytest.mark.parametrize(
    ("own", "data", "message"),
    [
        (plan(), {"name": "others"}, "'patients', .*the same people's data the same name"),
        (plan(adjacency="replace-one"), DATA, "adjacency='replace-one': must be that of"),
        (plan(unit="user"), DATA, "unit='user': must be that of the ledger"),
    ],
)
def test_what_does_not_add_up_is_refused(
    ledger: Ledger, own: Plan, data: dict[str, object], message: str
) -> None:
    charge(ledger, 1)
    with pytest.raises(ConfigurationError, match=message):
        ledger.begin(own, data, block=8)


def test_the_budget_of_a_ledger_is_a_hard_limit(tmp_path: Path) -> None:
    one = plan().epsilon_spent()
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=1.2 * one, delta=1e-5)
    charge(ledger, 20)
    size = ledger.path.stat().st_size
    with pytest.raises(BudgetExhausted, match="This run and all before it would cost"):
        ledger.begin(plan(), DATA, block=8)
    # It holds whether or not it is mentioned again, and a refusal leaves no trace.
    with pytest.raises(BudgetExhausted):
        Ledger(ledger.path).begin(plan(), DATA, block=8)
    assert ledger.path.stat().st_size == size
    charge(ledger, 1, of=plan(steps=1, noise_multiplier=4.0))
    assert ledger.epsilon(1e-5) <= 1.2 * one


def test_a_budget_may_be_used_up_to_its_last_bit(tmp_path: Path) -> None:
    measured = Ledger(tmp_path / "measured.jsonl")
    charge(measured, 20)
    cost = measured.epsilon(1e-5)
    charge(Ledger(tmp_path / "equal.jsonl", epsilon=cost, delta=1e-5), 20)
    below = Ledger(tmp_path / "below.jsonl", epsilon=math.nextafter(cost, 0), delta=1e-5)
    with pytest.raises(BudgetExhausted, match="This run and all before it would cost"):
        below.begin(plan(), DATA, block=8)


def test_a_budget_counts_the_rest_of_a_resumed_run(tmp_path: Path) -> None:
    one = plan().epsilon_spent()
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=1.1 * one, delta=1e-5)
    first = charge(ledger, 1)
    charge(ledger, 12, of=plan(steps=12))
    before = ledger.path.read_bytes()
    message = (
        r"^This run and all others, some since it was interrupted, would cost epsilon=\d\.\d{4} "
        r"together, and the ledger allows \S+ at delta=1e-05; use its checkpoints, whose steps "
        r"are charged, or plan a new run with a smaller epsilon\.$"
    )
    with pytest.raises(BudgetExhausted, match=message):
        ledger.resume(first, plan(), DATA, block=8, anchor=Anchor())
    assert ledger.path.read_bytes() == before


def test_what_an_interrupted_run_has_paid_is_not_asked_for_again(tmp_path: Path) -> None:
    # Room for the run and one step of another, and none for the first block twice.
    extra = plan(steps=1)
    measured = Ledger(tmp_path / "measured.jsonl")
    charge(measured, 20)
    charge(measured, 1, of=extra)
    ledger = Ledger(tmp_path / "l.jsonl", epsilon=measured.epsilon(1e-5), delta=1e-5)
    first = charge(ledger, 1)
    charge(ledger, 1, of=extra)
    with ledger.resume(first, plan(), DATA, block=8, anchor=Anchor()) as account:
        assert account.charged == 8
        account.cover(20)
    assert ledger.epsilon(1e-5) == measured.epsilon(1e-5)


def test_a_run_that_has_paid_for_all_its_steps_goes_on_whatever_others_used(tmp_path: Path) -> None:
    measured = Ledger(tmp_path / "measured.jsonl")
    charge(measured, 20)
    charge(measured, 20)
    ledger = Ledger(tmp_path / "l.jsonl", epsilon=measured.epsilon(1e-5), delta=1e-5)
    first = charge(ledger, 20)
    charge(ledger, 20)
    with ledger.resume(first, plan(), DATA, block=8, anchor=Anchor()) as account:
        assert account.charged == 20


def test_another_budget_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    charge(Ledger(path, epsilon=9.0, delta=1e-5), 1)
    with pytest.raises(ConfigurationError, match="is not the budget of the ledger"):
        Ledger(path, epsilon=10.0, delta=1e-5).begin(plan(), DATA, block=8)
    with pytest.raises(ConfigurationError, match=r"^`delta` is required with epsilon"):
        Ledger(path, epsilon=1.0)


@pytest.mark.parametrize("delta", [np.float32(1e-5), Fraction(1, 10**5)])
def test_any_kind_of_number_makes_a_budget(tmp_path: Path, delta: Any) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=3, delta=delta)
    with ledger.begin(plan(), DATA, block=8) as account:
        account.cover(1)
    assert ledger.epsilon(1e-5) > 0
