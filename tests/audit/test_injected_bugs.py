"""The battery notices every bug it should, and nothing in the shipped step."""

from __future__ import annotations

import pytest
from audit_subjects import alternating, mlp
from injected_bugs import BUGS

from steppe.audit import battery, sensitivity
from steppe.clipping import slots

SMALL = {"trials": 2, "draws": 40_000, "steps": 60}


@pytest.mark.parametrize("bug", BUGS)
def test_the_battery_notices(bug: str) -> None:
    sabotage, expected = BUGS[bug]
    failed = {
        result.name for result in battery(mlp(sabotage=sabotage), **SMALL) if not result.passed
    }
    assert expected <= failed, f"{bug}: only {failed or 'nothing'} failed"


def test_the_battery_notices_a_gram_norm_that_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_GUARD", 0.0)
    result = sensitivity(alternating(), trials=4)
    assert not result.passed
    assert "large common offset" in result.text


@pytest.mark.slow
def test_no_false_alarm_in_twenty_runs() -> None:
    for _ in range(20):
        failed = [str(result) for result in battery(mlp(), **SMALL) if not result.passed]
        assert not failed
