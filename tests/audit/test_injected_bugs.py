"""The battery notices every bug it should, and nothing in the shipped step."""

from __future__ import annotations

import pytest
from audit_subjects import alternating, mlp
from injected_bugs import BUGS
from injected_clip_bugs import CLIP_BUGS

from steppe.audit import battery, sensitivity
from steppe.audit.battery import checked
from steppe.clipping import grams


@pytest.mark.parametrize("bug", BUGS)
def test_every_check_that_should_notice_does(bug: str) -> None:
    sabotage, checks = BUGS[bug]
    subject = mlp(sabotage=sabotage)
    for check in checks:
        results = checked("check", lambda check=check: check(subject))
        assert not all(result.passed for result in results), [str(result) for result in results]


@pytest.mark.parametrize("bug", CLIP_BUGS)
def test_every_check_notices_the_bugs_of_clips(bug: str) -> None:
    build, checks = CLIP_BUGS[bug]
    for check in checks:
        results = checked("check", lambda check=check: check(build()))
        assert not all(result.passed for result in results), [str(result) for result in results]


def test_a_gram_norm_that_cancels_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sensitivity(alternating(), trials=4).passed
    monkeypatch.setattr(grams, "GUARD", 0.0)
    result = sensitivity(alternating(), trials=4)
    assert not result.passed
    assert "large common offset" in result.text


@pytest.mark.slow
def test_no_false_alarm_in_twenty_runs() -> None:
    for _ in range(20):
        results = battery(mlp(), trials=2, draws=40_000, steps=60)
        assert [str(result) for result in results if not result.passed] == []
