"""Correlated noise on the shipped step, over whole runs that are resumed; and bugs injected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from audit_subjects import subject_of
from torch import Tensor, nn

import steppe
from probed_once import ProbedOnce
from steppe.audit import AuditedRun, battery, correlated_noise, several_turns
from steppe.noise import Correlated, CorrelatedRun, Source
from steppe.noise.streams import RingStream
from steppe.private import Private
from steppe.probing import cache

RECORDS = 64


@pytest.fixture(autouse=True)
def one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "probe", ProbedOnce())


def subject(
    noise: Correlated,
    sabotage: Callable[[Private, int], None] | None = None,
    inputs: int = 300,
    **constants: Any,
) -> AuditedRun:
    """Three epochs of eight steps; a record's gradient hardly changes between its turns."""
    generator = torch.Generator().manual_seed(2)
    data = (torch.randn(RECORDS, inputs, generator=generator) * 9, torch.arange(RECORDS) % 2)
    model = nn.Linear(inputs, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    settings: dict[str, Any] = {
        "noise": noise,
        "sampling": steppe.FixedOrder(3),
        "adjacency": "zero-out",
        "steps": None,
        "clip": steppe.Flat(1e-3),
    }
    return subject_of(model, data, sabotage=sabotage, **(settings | constants))


NOISES: list[Correlated] = [
    steppe.BLT(2),
    steppe.Tree(),
    steppe.Tree(honaker=False),
    steppe.BandedToeplitz(12),
    steppe.BandInvMF(4),
    steppe.SqrtToeplitz(),
    steppe.Dense(),
]


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_the_noise_of_a_resumed_run_has_the_planned_covariance(noise: Correlated) -> None:
    for result in correlated_noise(subject(noise)):
        assert result.passed, str(result)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_one_record_moves_a_run_of_several_epochs_by_the_sensitivity(noise: Correlated) -> None:
    result = several_turns(subject(noise))
    assert result.passed, str(result)
    assert result.measured > 0.9  # the first batch's record is the worst of a fixed order


def test_banded_noise_with_cyclic_sampling_has_the_planned_covariance() -> None:
    sampling = steppe.CyclicPoisson(4)
    for result in correlated_noise(subject(steppe.BandedToeplitz(4), sampling=sampling, steps=20)):
        assert result.passed, str(result)


def _run_of(private: Private) -> CorrelatedRun:
    noise = private._step.mechanism.noise
    assert isinstance(noise, CorrelatedRun)
    return noise


def _state_lost(private: Private, records: int) -> None:
    """A resumed run begins with empty buffers."""
    run = _run_of(private)

    def forget(state: Mapping[str, Any], step: int, like: Tensor) -> None:
        for stream in run._streams:
            stream.step, stream.kept = step, stream.empty(like)

    run.load = forget  # type: ignore[method-assign]


def _noise_repeated(private: Private, records: int) -> None:
    """Every process draws the same fresh noise."""
    run, same = _run_of(private), steppe.SeededSource(3)
    start = run.start_

    def repeated(buffer: Tensor, std: float, source: Source) -> Tensor:
        return start(buffer, std, same)

    run.start_ = repeated  # type: ignore[method-assign]


def _divisor(private: Private, records: int) -> None:
    private._step.mechanism.divisor.fill_(records)


def _transposed(private: Private, records: int) -> None:
    """The noise of the transposed factor: Cᵀ where C was meant, turned to be causal."""
    run, plan = _run_of(private), private.plan
    encoder = plan.noise_factor.encoder()
    wrong = np.linalg.inv(np.linalg.cholesky(encoder.T @ encoder))
    run._streams = [RingStream(len(wrong) - 1, lambda step: wrong[step, step::-1], of_output=False)]


def _unscaled(private: Private, records: int) -> None:
    """σ times the clip, without the sensitivity of C."""
    run, plan = _run_of(private), private.plan
    start = run.start_

    def small(buffer: Tensor, std: float, source: Source) -> Tensor:
        return start(buffer, std / plan.noise_sensitivity, source)

    run.start_ = small  # type: ignore[method-assign]


def _independent(private: Private, records: int) -> None:
    private._step.mechanism.noise = steppe.Gaussian()


BUGS: dict[str, Callable[[Private, int], None]] = {
    "state lost on resuming": _state_lost,
    "noise repeated after resuming": _noise_repeated,
    "divided by the data size": _divisor,
    "transposed factor": _transposed,
    "sensitivity of C left out": _unscaled,
    "independent noise": _independent,
}


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_of_the_noise_are_noticed(bug: str) -> None:
    # The transposed factor differs little in a few entries, so it takes more coordinates to see.
    subtle = bug == "transposed factor"
    noise = steppe.Dense() if subtle else steppe.BLT(2)
    results = correlated_noise(subject(noise, BUGS[bug], inputs=6000 if subtle else 300))
    assert not all(result.passed for result in results), [str(result) for result in results]


def test_the_battery_measures_the_whole_run() -> None:
    results = battery(subject(steppe.BLT(2)), trials=1)
    assert [str(result) for result in results if not result.passed] == []
    assert {"correlated noise", "several turns", "sensitivity"} <= {r.name for r in results}
    broken = battery(subject(steppe.BLT(2), _unscaled), trials=1)
    assert any(not result.passed for result in broken)


class _NewOrderEveryEpoch(steppe.FixedOrder):
    """Shuffles again in every epoch, so that turns come closer than accounted."""

    def begin(self, records: int, population: int, batch_size: float, groups: Any) -> Any:
        batches = self.batches(population, batch_size)
        first = steppe.FixedOrder(self.epochs).begin(records, population, batch_size, groups)

        def draw(step: int, source: Any) -> Tensor:
            epoch, place = divmod(step, batches)
            return first(place if epoch % 2 == 0 else (place + 1) % batches, source)

        return draw


class _TwiceInAnEpoch(steppe.FixedOrder):
    def begin(self, records: int, population: int, batch_size: float, groups: Any) -> Any:
        first = super().begin(records, population, batch_size, groups)
        return lambda step, source: first(step // 2, source)


@pytest.mark.parametrize("sampling", [_NewOrderEveryEpoch(3), _TwiceInAnEpoch(3)], ids=str)
def test_turns_that_are_not_those_of_the_plan_are_noticed(sampling: steppe.FixedOrder) -> None:
    """More of a record than the plan hides, by its turns alone; the clip is the same."""
    result = several_turns(subject(steppe.BLT(2), sampling=sampling))
    assert not result.passed, str(result)
