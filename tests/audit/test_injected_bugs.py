"""The battery notices every bug it should, and nothing in the shipped step."""

from __future__ import annotations

import pytest
import torch
from audit_subjects import alternating, mlp
from injected_bugs import BUGS
from injected_clip_bugs import CLIP_BUGS

from probed_once import ProbedOnce
from steppe.audit import Result, battery, sensitivity
from steppe.audit.battery import checked
from steppe.gradients.slots import outer
from steppe.probing import cache

probed_once = ProbedOnce()  # bugs are injected after it, and it is itself in `test_battery`

STOPS = "NaN stops the run"  # the one bug that is an error


def require_noticed(results: list[Result], by_error: bool = False) -> None:
    """A check fails by what it measures; a bug that breaks down measures nothing."""
    texts = [str(result) for result in results]
    assert not all(result.passed for result in results), texts
    stopped = [text for text in texts if "stopped by" in text]
    assert by_error or not stopped, stopped


def test_a_breakdown_is_not_taken_for_a_notice() -> None:
    broken = checked("check", lambda: 1 / 0)
    with pytest.raises(AssertionError, match="stopped by ZeroDivisionError"):
        require_noticed(broken)
    require_noticed(broken, by_error=True)


@pytest.mark.parametrize("bug", BUGS)
def test_every_check_that_should_notice_does(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "probe", probed_once)
    sabotage, checks = BUGS[bug]
    subject = mlp(sabotage=sabotage)
    for check in checks:
        results = checked("check", lambda check=check: check(subject))
        require_noticed(results, by_error=bug == STOPS)


@pytest.mark.parametrize("bug", CLIP_BUGS)
def test_every_check_notices_the_bugs_of_clips(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "probe", probed_once)
    build, checks = CLIP_BUGS[bug]
    for check in checks:
        require_noticed(checked("check", lambda check=check: check(build())))


def test_a_gram_norm_that_cancels_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sensitivity(alternating(), trials=4).passed

    def in_float32(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = torch.bmm(x, x.mT) * torch.bmm(g, g.mT)
        return pairs.sum((1, 2)).clamp(min=0.0), g.sum(1)

    monkeypatch.setattr(outer, "paired_rows_and_sums", in_float32)
    monkeypatch.setattr(outer, "paired_rows", lambda x, g: in_float32(x, g)[0])
    result = sensitivity(alternating(), trials=4)
    assert not result.passed
    assert "large common offset" in result.text


@pytest.mark.slow
def test_no_false_alarm_in_twenty_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "probe", probed_once)
    for _ in range(20):
        results = battery(mlp(), trials=2, draws=40_000, steps=60)
        assert [str(result) for result in results if not result.passed] == []
