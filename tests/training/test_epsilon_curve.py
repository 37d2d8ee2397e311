"""The ε of the progress bar: never below the truth, near it, and computed once."""

from __future__ import annotations

from typing import Any

import pytest

from steppe import CappedPoisson, Plan
from steppe.errors import PrivacyWarning
from steppe.noise import StepSchedule
from steppe.sampling import Periodic
from steppe.training import epsilon_curve as curve_module
from steppe.training.epsilon_curve import EpsilonCurve

PLANS: dict[str, dict[str, Any]] = {
    "usual": {"batch_size": 2048, "population": 60_000, "steps": 1000, "noise_multiplier": 2.5},
    "little noise": {"batch_size": 100, "population": 5000, "steps": 300, "noise_multiplier": 0.6},
    "full batch": {"batch_size": 500, "population": 500, "steps": 60, "noise_multiplier": 20.0},
    "short": {"batch_size": 50, "population": 1000, "steps": 3, "noise_multiplier": 1.0},
    "capped": {
        "batch_size": 50,
        "population": 1000,
        "steps": 80,
        "noise_multiplier": 1.0,
        "sampling": CappedPoisson(),
        "adjacency": "zero-out",
    },
}
SLOW: dict[str, dict[str, Any]] = {
    "quiet": {"batch_size": 10, "population": 50_000, "steps": 5000, "noise_multiplier": 1.0},
    "schedule": {
        "batch_size": 100,
        "population": 5000,
        "steps": 200,
        "noise_multiplier": 2.0,
        "noise": StepSchedule(0.9, every=20),
    },
    "two groups": {
        "batch_size": 100,
        "population": 5000,
        "steps": 200,
        "noise_multiplier": 1.0,
        "sampling": Periodic(16),
    },
}


@pytest.mark.parametrize("name", [*PLANS, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_never_below_the_truth_and_near_it(name: str) -> None:
    plan = Plan(delta=1e-5, **{**PLANS, **SLOW}[name])
    curve, total = EpsilonCurve(plan), plan.total_steps
    assert curve(0) == 0.0
    assert curve(total) == plan.epsilon_spent()
    # Falling noise makes ε steep; "quiet" has so little of it that the coarse grid shows.
    tolerance = {"two groups": 1.3, "schedule": 1.3, "quiet": 1.4}.get(name, 1.1)
    for step in sorted({1, 2, *(total * part // 6 for part in range(1, 6)), total - 1}):
        if 0 < step <= total:
            exact = plan.epsilon_spent(step)
            assert exact * (1 - 1e-9) <= curve(step), step
            if step > total // 100:  # up to the first mark, the mark's own value stands
                assert curve(step) <= tolerance * exact + 0.01, step


def test_never_below_the_truth_where_it_is_concave() -> None:
    # Whoever takes part is as good as seen here, so that ε follows the chance of taking part: a
    # chord between two marks, in the logarithm of the steps, lies 0.1 to 0.4 % below it.
    facts: dict[str, Any] = {
        "batch_size": 1,
        "population": 100_000,
        "steps": 3000,
        "noise_multiplier": 0.21,
    }
    with pytest.warns(PrivacyWarning, match="delta"):
        plan = Plan(delta=2e-4, **facts)
    curve = EpsilonCurve(plan)
    for step in (150, 300, 500, 1000, 1764, 2400):
        exact = plan.epsilon_spent(step)
        assert exact * (1 - 1e-9) <= curve(step) <= 1.1 * exact + 0.01, step


def test_it_never_falls() -> None:
    curve = EpsilonCurve(Plan(delta=1e-5, **PLANS["usual"]))
    values = [curve(step) for step in range(1001)]
    assert values == sorted(values)


def test_a_value_is_computed_once_and_then_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    bound = curve_module._bound

    def counted(plan: Plan, steps: int) -> float:
        computed.append(steps)
        return bound(plan, steps)

    monkeypatch.setattr(curve_module, "_bound", counted)
    plan = Plan(delta=1e-5, **PLANS["short"])
    curve = EpsilonCurve(plan)
    assert computed == []  # what the run does not come to costs nothing
    monkeypatch.setattr(Plan, "epsilon_spent", None)  # the end is known by now
    first = curve(2)
    assert [curve(2) for _ in range(1000)] == [first] * 1000
    assert computed == [2]
    curve(plan.total_steps)
    assert computed == [2]


def test_exact_values_grow_up_to_the_end_and_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(delta=1e-5, **PLANS["usual"])
    curve = EpsilonCurve(plan)
    found = [curve.exactly(step) for step in (0, 500, 900, 999, 1000)]
    assert found == [0.0, *(plan.epsilon_spent(step) for step in (500, 900, 999)), curve(1000)]
    assert len(set(found)) == 5  # a figure by ε has no two steps at one place
    assert curve(900) == curve(1000)  # the bound has: it is that of the next mark
    monkeypatch.setattr(Plan, "epsilon_spent", None)
    assert [curve.exactly(step) for step in (0, 500, 900, 999, 1000)] == found
