"""Plans with correlated noise, and with records that take turns: account and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import rdp

import steppe
from steppe import accounting
from steppe.accounting import Participation, Segment
from steppe.noise import Correlated

FIXED: dict[str, Any] = {"sampling": steppe.FixedOrder(4), "adjacency": "zero-out"}


def plan(**changes: Any) -> steppe.Plan:
    constants: dict[str, Any] = {
        "delta": 1e-5,
        "noise_multiplier": 2.0,
        "population": 600,
        "batch_size": 20,
        "noise": steppe.BLT(2),
        **FIXED,
    }
    return steppe.Plan(**(constants | changes))


@pytest.mark.parametrize(
    "noise", [steppe.BLT(), steppe.Tree(), steppe.BandedToeplitz(8), steppe.BandInvMF(4)]
)
@pytest.mark.parametrize(("epochs", "point", "factor"), [(1, steppe.Here(), 1.0), (4, None, 2.0)])
def test_the_whole_run_is_one_gaussian_answer(
    noise: Correlated, epochs: int, point: Any, factor: float
) -> None:
    """ε depends on σ alone: the noise, the turns and the steps are in the size of the noise."""
    point = steppe.SAM(0.1) if point is None else point
    run = plan(noise=noise, sampling=steppe.FixedOrder(epochs), point=point)
    exact = dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(factor), 1e-5)
    assert run.epsilon_spent() == pytest.approx(exact, rel=1e-6)
    assert run.event().event == dp_accounting.GaussianDpEvent(2.0 / math.sqrt(factor))
    turns = Participation(epochs, 30)
    matrix = noise.factor(30 * epochs, turns).encoder()
    taken = np.arange(0, 30 * epochs, 30)
    assert run.noise_sensitivity >= math.sqrt(np.square(matrix[:, taken].sum(1)).sum()) * (1 - 1e-9)
    assert run.noise_std == pytest.approx(2.0 * run.noise_sensitivity)


@pytest.mark.parametrize(("sigma", "tight", "stated"), [(0.341, 17.648, 18.9), (0.682, 7.601, 8.2)])
def test_the_epsilons_of_seed_001(sigma: float, tight: float, stated: float) -> None:
    """2,048 rounds of 100 users, each once: RDP at whole orders gives the stated ones."""
    rounds = steppe.Plan(
        delta=1e-6,
        noise_multiplier=sigma,
        population=204_800,
        batch_size=100,
        noise=steppe.BLT(),
        sampling=steppe.FixedOrder(epochs=1),
        adjacency="zero-out",
        unit="user",
    )
    assert rounds.total_steps == 2048
    assert rounds.epsilon_spent() == pytest.approx(tight, abs=6e-4)
    accountant = rdp.RdpAccountant(range(2, 129), dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(rounds.event())
    assert round(accountant.get_epsilon(1e-6), 1) == stated
    tight_plan = replace(rounds, noise_multiplier=None, epsilon=stated)
    assert 0.93 < tight_plan.sigma / sigma < 0.95


def test_noise_is_calibrated_to_the_budget() -> None:
    run = plan(noise_multiplier=None, epsilon=3.0)
    assert 0.999 * 3.0 < run.epsilon_spent() <= 3.0
    other = plan(noise_multiplier=None, epsilon=3.0, noise=steppe.Tree())
    assert other.sigma == run.sigma
    independent = plan(noise_multiplier=None, epsilon=3.0, noise=steppe.Gaussian())
    # Four answers at twice the noise are one at this noise.
    assert independent.sigma == pytest.approx(2 * run.sigma, rel=1e-3)


@pytest.mark.parametrize("noise", [steppe.BLT(2), steppe.Tree(), steppe.Dense()])
def test_the_beginning_of_a_run_costs_what_its_rows_show(noise: Correlated) -> None:
    run = plan(noise=noise)
    factor = noise.factor(120, Participation(4, 30))
    whole = factor.squared_sensitivity(Participation(4, 30))
    before = 0.0
    for steps in (1, 30, 31, 77, 119, 120):
        share = factor.first(steps).squared_sensitivity(Participation(4, 30)) / whole
        exact = dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(share), 1e-5)
        spent = run.epsilon_spent(steps)
        # Every step of so few has its mark. A dense C has entries of both signs, with which the
        # bound of a beginning can lie above that of more steps, and the smaller one counts.
        close = 1e-3 if noise == steppe.Dense() else 1e-6
        assert spent == pytest.approx(exact, rel=close)
        assert spent <= run.epsilon_spent() * (1 + 1e-9)
        assert spent >= before
        before = spent
    assert run.epsilon_spent(0) == 0.0


def test_costs_of_beginnings_add_up() -> None:
    """As a ledger writes them: stretch by stretch."""
    run = plan(population=6000)  # 1,200 steps, which share their marks
    longer, shorter = run.segments(700), run.segments(400)
    assert longer[: len(shorter)] == shorter
    assert len(run.segments(1200)) <= 128
    together = accounting.epsilon(run.segments(1200), 1e-5, "zero-out")
    assert together == pytest.approx(run.epsilon_spent(), rel=1e-6)
    poisson = (Segment(0.01, 1.5, 500),)
    one = Segment(1.0, run.sigma, 1)
    assert accounting.epsilon((*run.segments(1200), *poisson), 1e-5, "zero-out") == pytest.approx(
        accounting.epsilon((one, *poisson), 1e-5, "zero-out"), rel=1e-6
    )


def test_banded_noise_is_amplified_by_cyclic_sampling() -> None:
    """It costs what independent noise costs of one part alone."""
    cyclic = plan(noise=steppe.BandedToeplitz(6), sampling=steppe.CyclicPoisson(6), steps=100)
    by_hand = accounting.epsilon((Segment(20 * 6 / 600, 2.0, 17),), 1e-5, "zero-out")
    assert cyclic.epsilon_spent() == pytest.approx(by_hand, rel=1e-6)
    independent = replace(cyclic, noise=steppe.Gaussian())
    assert independent.epsilon_spent() == cyclic.epsilon_spent()
    column = steppe.BandedToeplitz(6).factor(100, Participation()).encoder()[:, 0]
    assert cyclic.noise_std == pytest.approx(2.0 * np.linalg.norm(column))
    assert cyclic.epsilon_spent(12) == pytest.approx(
        accounting.epsilon((Segment(0.2, 2.0, 2),), 1e-5, "zero-out"), rel=1e-6
    )


def test_independent_noise_in_a_fixed_order_is_not_amplified() -> None:
    run = plan(noise=steppe.Gaussian())
    assert run.total_steps == 120
    exact = dp_accounting.get_epsilon_gaussian(1.0, 1e-5)
    assert run.epsilon_spent() == pytest.approx(exact, rel=1e-6)
    assert run.epsilon_spent(30) == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0, 1e-5))
    replaced = plan(noise=steppe.Gaussian(), adjacency="replace-one")
    doubled = dp_accounting.get_epsilon_gaussian(0.5, 1e-5)
    assert replaced.epsilon_spent() == pytest.approx(doubled, rel=1e-6)


def test_the_noise_of_a_step_is_the_size_of_its_row() -> None:
    run = plan(noise=steppe.BandedToeplitz(3))
    rows = run.noise_factor.decoder()
    for step in (0, 1, 2, 50, 119):
        size = run.noise_std * np.linalg.norm(rows[step])
        assert run.noise_std_at(step) == pytest.approx(size, rel=1e-12)
        assert run.fresh_noise_std_at(step) == run.noise_std
    with pytest.raises(ValueError, match="step=120: lies outside the 120 steps"):
        run.noise_std_at(120)


def test_adam_is_corrected_by_the_noise_of_each_step() -> None:
    run = plan()
    weight = torch.nn.Parameter(torch.zeros(2))
    levels = steppe.DPAdam.for_plan([weight], run).param_groups[0]["noise_std"]
    found = [std for count, std in levels for _ in range(count)]
    assert found == pytest.approx([run.noise_std_at(step) / 20 for step in range(120)])
    assert len(set(found)) > 10


def test_the_statement_says_who_takes_part_and_what_is_secret() -> None:
    text = str(plan().statement())
    assert "Fixed order: each record takes part at most 4 times, consecutive ones 30 steps" in text
    assert "no privacy is claimed from it" in text
    assert "noise is correlated over the steps (BLT)" in text
    assert "checkpoints to resume from contain and which must stay secret" in text
    assert "One Gaussian answer about the whole run at σ = 2.0;" in text
    assert "The 120 steps of this run" in text
    assert "Poisson" not in text
    facts = plan().statement().to_dict()
    assert facts["turns"] == {"times": 4, "separation": 30, "exact": True}
    assert facts["correlated_noise"] == "BLT"
    assert facts["steps"] == 120
    cyclic = plan(noise=steppe.BandedToeplitz(2), sampling=steppe.CyclicPoisson(2), steps=9)
    assert "Cyclic Poisson sampling: records are divided into 2 parts" in str(cyclic.statement())
    described = json.loads(json.dumps(plan().to_dict()))
    assert described["noise"] == {"kind": "BLT", "momentum": 0.0, "buffers": 2}
    assert described["sampling"] == {"kind": "FixedOrder", "epochs": 4, "order": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sampling": steppe.Poisson(), "steps": 9},
            r"noise=BLT\(.*cannot be used with Poisson\(\): no account of correlated noise is "
            r"known where a record can take part in any step by chance; set sampling=FixedOrder",
        ),
        ({"sampling": steppe.CappedPoisson(), "steps": 9}, r"cannot be used with CappedPoisson"),
        ({"sampling": steppe.Periodic(4), "steps": 9}, r"cannot be used with Periodic"),
        (
            {"sampling": steppe.Poisson(), "steps": 9, "population": None},
            r"cannot be used with Poisson",
        ),
        (
            {"adjacency": "add-remove"},
            r"adjacency='add-remove': cannot be used with FixedOrder: on",
        ),
        (
            {"sampling": steppe.CyclicPoisson(5), "steps": 60},
            r"reaches back over 60 steps, and a record may take part again after 5: .* use Banded",
        ),
        (
            {"sampling": steppe.CyclicPoisson(5), "steps": 60, "noise": steppe.BandedToeplitz(6)},
            r"reaches back over 6 steps, .* use BandedToeplitz\(5\), CyclicPoisson\(6\), or",
        ),
        (
            {
                "sampling": steppe.CyclicPoisson(6),
                "steps": 60,
                "noise": steppe.BandedToeplitz(6),
                "adjacency": "replace-one",
            },
            r"adjacency='replace-one': cannot be used with CyclicPoisson and correlated noise",
        ),
        ({"steps": 121}, r"steps=121: are more than 4 epochs of 30 batches, so records would take"),
        ({"steps": 90}, r"steps=90: are fewer than 4 epochs .* use FixedOrder\(epochs=3\)"),
        ({"epochs": 4}, r"epochs=4: cannot be given together with FixedOrder"),
        (
            {"noise": steppe.Dense(workload=np.tri(100))},
            r"Dense\.workload='100 rows': must have 120 rows, one for each step of the run",
        ),
        (
            {"sampling": steppe.CyclicPoisson(40), "noise": steppe.Gaussian(), "steps": 9},
            r"batch_size=20\.0: must not exceed population/parts=15",
        ),
    ],
)
def test_what_has_no_account_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**changes).epsilon_spent()


@dataclass(frozen=True)
class Unsaid(steppe.Poisson):
    """Divides the records in a public way, and does not say how."""

    @property
    def public_population(self) -> bool:
        return True


def test_a_sampler_that_does_not_say_its_turns_is_refused() -> None:
    with pytest.raises(ValueError, match="with Unsaid, which does not say in which steps a record"):
        plan(sampling=Unsaid(), steps=9)


def test_steps_within_the_last_epoch_are_accepted() -> None:
    assert plan(steps=91).epsilon_spent() == pytest.approx(plan().epsilon_spent())
    assert plan(steps=91).noise_sensitivity < plan().noise_sensitivity
