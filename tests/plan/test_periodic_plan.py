"""The account of two groups: each by its own rates, the worse one reported and calibrated."""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steppe
from probed_once import ProbedOnce
from steppe import accounting
from steppe.accounting import Segment
from steppe.accounting.segment import merged, with_few_rates
from steppe.audit import AuditedRun, battery, sampler_law
from steppe.errors import ConfigurationError
from steppe.noise import SeededSource
from steppe.probing import cache
from steppe.sampling import Periodic, Poisson


def plan(**changes: Any) -> steppe.Plan:
    constants = {
        "delta": 1e-5,
        "noise_multiplier": 1.5,
        "population": 1000,
        "batch_size": 50,
        "steps": 60,
        "sampling": Periodic(8, first=0.4),
    }
    return steppe.Plan(**{**constants, **changes})


def by_hand(group: int, steps: int = 60, sigma: float = 1.5) -> float:
    """ε of one group, one event a step."""
    size = (400, 600)[group]
    run = []
    for step in range(steps):
        first = abs(2 * (step % 8) / 8 - 1)
        run.append(Segment(50 * (first, 1 - first)[group] / size, sigma, 1))
    return accounting.epsilon(run, 1e-5)


def test_the_worse_group_is_reported() -> None:
    run = plan()
    costs = [accounting.epsilon(part, 1e-5) for part in run.segments_by_group()]
    assert costs == pytest.approx([by_hand(0), by_hand(1)], rel=1e-6)
    assert run.epsilon_spent() == max(costs) > 1.2 * min(costs)
    assert run.epsilon_spent(5) == pytest.approx(by_hand(0, steps=5), rel=1e-6)


def test_the_rate_that_is_told_is_the_largest() -> None:
    run = plan()
    assert run.rate == pytest.approx(50 / 400, rel=1e-12)
    assert run.to_dict()["rate"] == run.rate


def test_the_average_rate_would_understate() -> None:
    """Rates that vary cost more than the same participation spread evenly."""
    assert plan().epsilon_spent() > 1.1 * plan(sampling=Poisson()).epsilon_spent()


def test_segments_bound_every_group() -> None:
    run = plan()
    assert accounting.epsilon(run.segments(), 1e-5) >= run.epsilon_spent()
    assert sum(part.steps for part in run.segments()) == 60
    assert [sum(part.steps for part in one) for one in run.segments_by_group(13)] == [13, 13]


def test_calibration_spends_the_budget_in_the_worse_group() -> None:
    run = plan(noise_multiplier=None, epsilon=2.0)
    assert 1.998 <= run.epsilon_spent() <= 2.0
    assert 1.998 <= by_hand(0, sigma=run.sigma) <= 2.0 + 1e-9
    assert by_hand(1, sigma=run.sigma) < 1.9


def test_equal_groups_cost_the_same_and_are_computed_once() -> None:
    run = plan(sampling=Periodic(8), steps=64)
    one, two = run.segments_by_group()
    accounting.pld.epsilon_on_grid.cache_clear()
    assert accounting.epsilon(one, 1e-5) == accounting.epsilon(two, 1e-5)
    assert accounting.pld.epsilon_on_grid.cache_info().misses == 1


def test_rates_of_zero_and_one() -> None:
    """Period two: each group is all or nothing, so its half of the steps is a full-batch run."""
    run = plan(sampling=Periodic(2), batch_size=500, noise_multiplier=20.0, steps=10)
    exact = accounting.epsilon([Segment(1.0, 20.0, 5)], 1e-5)
    assert run.epsilon_spent() == exact
    assert run.epsilon_spent(1) == accounting.epsilon([Segment(1.0, 20.0, 1)], 1e-5)
    mixed = accounting.epsilon([Segment(1.0, 20.0, 5), Segment(0.0, 20.0, 9)], 1e-5)
    assert mixed == exact
    with_others = [Segment(1.0, 20.0, 5), Segment(0.5, 20.0, 4)]
    both = accounting.epsilon(with_others, 1e-5)
    assert exact < both < accounting.epsilon([Segment(1.0, 20.0, 9)], 1e-5)
    assert both <= accounting.rdp_epsilon(with_others, 1e-5)


def test_a_schedule_of_the_noise_meets_the_rates_of_its_steps() -> None:
    run = plan(noise=steppe.StepSchedule(0.5, every=30))
    segments = [
        Segment(50 * abs(2 * (t % 8) / 8 - 1) / 400, 1.5 if t < 30 else 0.75, 1) for t in range(60)
    ]
    expected = accounting.epsilon(segments, 1e-5)
    assert accounting.epsilon(run.segments_by_group()[0], 1e-5) == pytest.approx(expected, rel=1e-6)


def test_many_distinct_rates_are_rounded_up() -> None:
    """A long period is accounted with 64 rates, each at least the true one."""
    run = plan(sampling=Periodic(1000), steps=1000, population=10_000)
    segments = run.segments_by_group()[0]
    assert len({part.rate for part in segments}) > 400
    kept = accounting.pld.checked(segments, "add-remove")
    assert len(kept) <= 64
    between = accounting.epsilon(with_few_rates(merged(segments), 64, statistics.fmean), 1e-5)
    assert between < accounting.epsilon(segments, 1e-5) < 1.02 * between


def test_the_statement_says_so() -> None:
    statement = plan().statement()
    text = str(statement)
    assert "groups with sampling rates of their own have declared sizes" in text
    assert "with probability 0.125 at most, which changes with the step and differs between" in text
    assert "in the group with the largest ε" in text
    assert statement.epsilon == plan().epsilon_spent()
    groups = plan().segments_by_group()
    assert statement.rdp_epsilon == max(accounting.rdp_epsilon(one, 1e-5) for one in groups)
    assert statement.curve == tuple(
        (delta, max(accounting.epsilon(one, delta) for one in groups)) for delta in (1e-6, 1e-7)
    )
    assert statement.steps == 60
    found = statement.to_dict()
    assert len(found["groups"]) == 2
    rows = [
        Segment(row["rate"], row["noise_multiplier"], row["steps"]) for row in found["accounted"]
    ]
    assert accounting.epsilon(rows, 1e-5) == found["epsilon"]
    assert plan().to_dict()["sampling"] == {"kind": "Periodic", "period": 8, "first": 0.4}
    assert plan().digest() != plan(sampling=Periodic(8)).digest()


def test_replace_one_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"adjacency='replace-one': cannot be used with groups"
    ):
        plan(adjacency="replace-one")


WIDE = 99  # so many inputs that a step draws hundreds of numbers, and the noise law needs few steps


def private_of(
    run: steppe.Plan, data: Any, source: Any = None, *, inputs: int = 3, **options: Any
) -> steppe.Private:
    torch.manual_seed(0)
    model = nn.Linear(inputs, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return steppe.make_private(
        model, optimizer, data, run, loss=F.cross_entropy, source=source, **options
    )


def halves(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(0, records, 2), torch.arange(1, records, 2)


def test_a_run_meets_its_groups_in_turn() -> None:
    inputs = torch.arange(40.0).repeat(3, 1).T % 2  # even rows are 0, odd rows are 1
    data = (inputs, torch.zeros(40, dtype=torch.long))
    run = plan(population=40, batch_size=20, steps=8, sampling=Periodic(4), delta=1e-3)
    private = private_of(run, data, groups=halves(40))
    seen = []
    for batch in private:
        seen.append(set(batch[0][:, 0].tolist()))
        private.step(batch)
    assert seen[0] == seen[4] == {0.0}
    assert seen[2] == seen[6] == {1.0}
    assert private.epsilon() == run.epsilon_spent()


def test_groups_are_asked_for_and_refused() -> None:
    data = (torch.randn(40, 3), torch.zeros(40, dtype=torch.long))
    run = plan(population=40, batch_size=20, steps=8, sampling=Periodic(4), delta=1e-3)
    with pytest.raises(ConfigurationError, match="groups=None: must be 2 arrays of row numbers"):
        private_of(run, data)
    plain = replace(run, sampling=Poisson())
    with pytest.raises(
        ConfigurationError, match="groups='tuple': cannot be used with Poisson, which has one"
    ):
        private_of(plain, data, groups=halves(40))


def subject(sampling: Periodic, **changes: Any) -> AuditedRun:
    torch.manual_seed(0)
    data = (torch.randn(64, WIDE), torch.randint(2, (64,)))

    def build(run: steppe.Plan, rows: Any, source: Any) -> steppe.Private:
        return private_of(run, rows, source, inputs=WIDE, groups=halves(len(rows)))

    run = plan(population=64, batch_size=16, steps=8, sampling=sampling, delta=1e-3, **changes)
    return AuditedRun(build, run, data)


@pytest.mark.parametrize(
    "others", [{}, {"point": steppe.SAM(0.05), "noise": steppe.Gaussian(grid=True)}]
)
def test_the_battery_passes(others: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "probe", ProbedOnce(same_weights=True))
    results = battery(subject(Periodic(6), **others), trials=2, draws=20_000, steps=60)
    assert [str(result) for result in results if not result.passed] == []


class _Late(Periodic):
    """One step behind its account."""

    def thresholds(self, population: int, batch_size: float, phase: int) -> tuple[int, int]:
        return super().thresholds(population, batch_size, (phase - 1) % self.period)

    def rates(self, population: int, batch_size: float, start: int, stop: int) -> Any:
        return Periodic(self.period, self.first).rates(population, batch_size, start, stop)


class _Swapped(Periodic):
    """Members of one group are drawn at the other's rate."""

    def begin(self, records: int, population: int, batch_size: float, groups: Any) -> Any:
        return super().begin(records, population, batch_size, groups[::-1])


class _Level(Periodic):
    """Everybody at the average rate, as if nobody came and went."""

    def begin(self, records: int, population: int, batch_size: float, groups: Any) -> Any:
        return Poisson().begin(records, population, batch_size, None)


@pytest.mark.parametrize("faulty", [_Late, _Swapped, _Level])
def test_the_audit_notices_other_rates(faulty: type[Periodic]) -> None:
    assert not all(result.passed for result in sampler_law(subject(faulty(6)), steps=60))


def test_the_audit_accepts_unequal_groups() -> None:
    data = subject(Periodic(6, first=0.25))

    def build(run: steppe.Plan, rows: Any, source: Any) -> steppe.Private:
        members = (torch.arange(16), torch.arange(16, len(rows)))
        return private_of(run, rows, source, inputs=WIDE, groups=members)

    results = sampler_law(replace(data, build=build), steps=60)
    assert [str(result) for result in results if not result.passed] == []


def test_a_run_can_be_repeated_from_its_seed() -> None:
    data = (torch.randn(40, 3), torch.randint(2, (40,)))
    run = plan(population=40, batch_size=20, steps=8, sampling=Periodic(4), delta=1e-3)
    weights = []
    for _ in range(2):
        private = private_of(run, data, SeededSource(5), groups=halves(40))
        for batch in private:
            private.step(batch)
        weights.append(copy.deepcopy(private.model.state_dict()["weight"]))
    assert torch.equal(*weights)
