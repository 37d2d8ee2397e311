"""The choice between equal ways: by time, with doubt in favour of the one that holds less."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from steppe.gradients import kernel_choice
from steppe.gradients.kernel_choice import Candidate, Kernels
from steppe.gradients.slots.slot import Materialised, Slot


def slot() -> Slot:
    return Materialised(torch.ones(2, 3))


WAYS = {
    "lean": Candidate(slot, flops=2.0, workspace=1.0),
    "kept": Candidate(slot, flops=1.0, workspace=9.0),
}


class Clock:
    """Stands in for the timing of one candidate; notes the order in which they were timed."""

    def __init__(self, **seconds: Iterator[float]) -> None:
        self.seconds, self.order = seconds, list[str]()

    def __call__(self, candidate: Candidate, numel: int, dtype: torch.dtype) -> float:
        (name,) = (name for name, way in WAYS.items() if way is candidate)
        self.order.append(name)
        return next(self.seconds[name])


def forever(*first: float, then: float) -> Iterator[float]:
    yield from first
    while True:
        yield then


def chosen(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> str:
    monkeypatch.setattr(kernel_choice, "_seconds", clock)
    ways = Kernels()
    ways.pick("shape", WAYS, 3, torch.float32)
    return ways.chosen["shape"]


@pytest.mark.parametrize(("kept", "expected"), [(0.080, "kept"), (0.090, "lean"), (0.2, "lean")])
def test_a_way_that_holds_more_must_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, kept: float, expected: str
) -> None:
    clock = Clock(lean=forever(then=0.1), kept=forever(then=kept))
    assert chosen(monkeypatch, clock) == expected


@pytest.mark.parametrize(("kept", "expected"), [(0.070, "kept"), (0.080, "lean")])
def test_a_way_that_decides_the_peak_must_be_faster_still(
    monkeypatch: pytest.MonkeyPatch, kept: float, expected: str
) -> None:
    monkeypatch.setitem(WAYS, "kept", Candidate(slot, flops=1.0, workspace=64e6))
    clock = Clock(lean=forever(then=0.1), kept=forever(then=kept))
    assert chosen(monkeypatch, clock) == expected


def test_a_disturbance_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lean=forever(9.0, 9.0, 9.0, then=0.1), kept=forever(0.2, then=0.2))
    assert chosen(monkeypatch, clock) == "lean"
    assert clock.order[:4] == ["lean", "kept", "lean", "kept"]


@pytest.mark.parametrize(("seconds", "turns"), [(1.0, 5), (1e-6, 10)])
def test_quick_ways_are_timed_more_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, turns: int
) -> None:
    clock = Clock(lean=forever(then=seconds), kept=forever(then=seconds))
    assert chosen(monkeypatch, clock) == "lean"
    assert len(clock.order) == 2 * turns


def test_nothing_is_timed_where_nothing_is_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*_: object) -> float:
        pytest.fail("timed")

    monkeypatch.setattr(kernel_choice, "_seconds", timed)
    hopeless = WAYS | {"kept": Candidate(slot, flops=1000.0)}
    for ways, candidates, expected in (
        (Kernels(measure=False), WAYS, "kept"),
        (Kernels(pinned={"shape": "lean"}), WAYS, "lean"),
        (Kernels(workspace=5), WAYS, "lean"),
        (Kernels(), hopeless, "lean"),
    ):
        ways.pick("shape", candidates, 3, torch.float32)
        assert ways.chosen == {"shape": expected}


def test_real_candidates_are_timed() -> None:
    ways = Kernels()
    assert isinstance(ways.pick("shape", WAYS, 3, torch.float32), Materialised)
    assert ways.chosen["shape"] in WAYS
