"""The DP-SAT experiments do what they say, on a few made-up pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from steppe.errors import ConfigurationError
from steppe.papers import Constants, Experiment, ExperimentRun, pictures
from steppe.papers.dp_sat import (
    budgets,
    cifar,
    convergence,
    cosines,
    flatness,
    landscape,
    measured,
    recipe,
    speed,
    toy,
)
from steppe.papers.dp_sat.accuracy import DPNAS, FASHION, MNIST, OPTIMIZERS, RADIUS
from steppe.papers.dp_sat.gradient_recorder import RememberingSource
from steppe.papers.pictures import Pictures
from steppe.points import SAM, SAT, Here

SMALL: Mapping[str, Any] = {"population": 400, "batch": 100, "epochs": 4}


def shrunk(constants: Constants, **more: Any) -> Constants:
    return {**constants, **SMALL, **more}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Pictures:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 1, 28, 28, generator=generator)
    y = torch.randint(10, (500,), generator=generator)
    pictures = Pictures((x[:400], y[:400]), (x[400:], y[400:]))
    for module in (recipe, measured, flatness, cosines, convergence, landscape):
        monkeypatch.setattr(module, "load", lambda name: pictures)
    return pictures


def as_run(experiment: Experiment, setting: str, constants: Constants) -> ExperimentRun:
    measured = json.loads(json.dumps(experiment.measure(constants, 0)))
    return ExperimentRun(setting, 0, constants, measured, 1.0, 1, "", "", "")


def test_all_methods_spend_the_same_and_the_paper_wastes_some() -> None:
    plans = {name: recipe.plan(c) for name, c in measured.methods("mnist", 3.0).items()}
    sgd, sam = plans["DP-SGD"], plans["DP-SAM, tight account"]
    wasteful = plans["DP-SAM, noise of half the budget"]
    short = plans["DP-SAM, the paper's steps"]
    assert sgd.total_steps == 1200
    assert sgd.point == Here()
    assert plans["DP-SAT"].point == SAT(0.03)
    assert plans["DP-SAT"].sigma == sgd.sigma
    assert sam.point == SAM(0.03)
    assert sam.sigma / sgd.sigma == pytest.approx(math.sqrt(2), rel=2e-3)
    assert wasteful.sigma / sgd.sigma > 1.8
    assert 2.99 < sam.epsilon_spent() <= 3.0
    assert wasteful.epsilon_spent() < 2.2
    assert short.total_steps == 288  # 9.6 of 40 epochs
    assert short.sigma == sgd.sigma
    assert short.epsilon_spent() < 3.0


@pytest.mark.slow
def test_a_run_can_be_repeated_and_methods_differ() -> None:
    settings = FASHION[1].settings
    first, again = (FASHION[1].measure(shrunk(settings["DP-SAT"]), 3) for _ in range(2))
    assert first["accuracies"] == pytest.approx(again["accuracies"], abs=0.01)
    assert first["sigma"] == again["sigma"]
    assert len(first["accuracies"]) == len(first["epochs"]) == 8
    assert first["epochs"][-1] == 4.0
    assert first["steps"] == 16
    assert 2.9 < first["epsilon"] <= 3.0
    torch.manual_seed(1)  # the global state must not matter
    runs = [recipe.train(shrunk(settings[name]), 3) for name in ("DP-SGD", "DP-SAT", "DP-SAT")]
    assert runs[0].private.engine.kernels.chosen == pictures._WAYS  # nothing else was to choose
    weights = [torch.cat([p.flatten() for p in run.model.parameters()]) for run in runs]
    assert torch.equal(weights[1], weights[2])
    assert (weights[0] - weights[1]).abs().max() > 5e-4


def test_names_and_first_settings() -> None:
    names = [e.name for e in (*FASHION, *MNIST)]
    assert names == [f"dp-sat-{data}-{e}" for data in ("fashion", "mnist") for e in (1, 3, 2)]
    assert all(list(e.settings)[:2] == ["DP-SGD", "DP-SAT"] for e in (*FASHION, *MNIST))
    assert [len(e.seeds) for e in (*FASHION, *MNIST)] == [3, 3, 3, 2, 2, 2]


@pytest.mark.parametrize("experiment", [FASHION[0], RADIUS], ids=lambda e: e.name)
def test_figures_of_accuracy(experiment: Experiment) -> None:
    chosen = list(experiment.settings.items())[:2]
    runs = [as_run(experiment, name, shrunk(constants)) for name, constants in chosen]
    assert experiment.figure is not None
    assert experiment.figure(runs).axes


def test_the_large_network_is_asked_for() -> None:
    assert {c["model"] for c in DPNAS.settings.values()} == {"dpnas-mnist"}
    assert {c["epochs"] for c in DPNAS.settings.values()} == {3}


def test_the_noise_can_be_taken_out_again() -> None:
    source = RememberingSource(5)
    drawn = source.fill_normal_(torch.empty(10), 2.0)
    assert torch.equal(drawn, source.last)
    drawn.add_(1.0)
    assert not torch.equal(drawn, source.last)


@pytest.mark.slow
def test_flatness_of_two_solutions() -> None:
    (constants,) = flatness.FLATNESS.settings.values()
    run = as_run(flatness.FLATNESS, "both", shrunk(constants, records=64, epochs=8))
    measured = run.measured
    for name in ("DP-SGD", "DP-SAT"):
        spectrum = measured[f"{name}, spectrum"]
        assert max(spectrum["nodes"][0]) == pytest.approx(measured[f"{name}, sharpness"], rel=0.05)
        assert list(measured[f"{name}, norms"]) == ["epoch 1", "epoch 2", "epoch 8"]
        assert abs(measured[f"{name}, noisy cosine"]) < abs(measured[f"{name}, cosine"])
    path = measured["path"]
    assert path["positions"][5] == 0.0
    assert path["positions"][15] == 1.0
    assert flatness.FLATNESS.figure is not None
    assert len(flatness.FLATNESS.figure([run]).axes) == 4


def test_cosines_before_the_noise_are_larger() -> None:
    constants = shrunk(cosines.COSINES.settings["C = 0.1, batch 2000"])
    run = as_run(cosines.COSINES, "small", constants)
    assert run.measured["clean"] > run.measured["noisy"]
    assert cosines.COSINES.figure is not None
    assert cosines.COSINES.figure([run]).axes


def test_speed_counts_the_second_pass_of_sam() -> None:
    constants = {"model": "cnn-tanh-26k", "batch": 40, "physical batch": 40, "rounds": 3}
    run = as_run(speed.SPEED, "small", constants)
    assert run.measured["DP-SGD"] == 1.0
    assert run.measured["DP-SAM"] > 1.2
    assert speed.SPEED.figure is not None
    assert speed.SPEED.figure([run]).axes


def test_noise_does_more_in_the_sharp_minimum() -> None:
    found = {
        name: toy.TOY.measure({**constants, "steps": 20}, 0)["gradient change"]
        for name, constants in toy.TOY.settings.items()
    }
    assert found["sharp"] > 5 * found["flat"]


def test_without_noise_a_run_learns_more_and_claims_no_epsilon() -> None:
    settings = convergence.FASHION.settings
    noisy, silent = (
        as_run(convergence.FASHION, name, shrunk(settings[name], records=50))
        for name in ("DP-SGD, ε = 1", "SGD with clip")
    )
    assert noisy.measured["epsilon"] <= 1.0
    assert (silent.measured["epsilon"], silent.measured["sigma"]) == (None, 0.0)
    assert silent.measured["loss"] < noisy.measured["loss"]
    assert len(noisy.measured["losses"]) == len(noisy.measured["accuracies"]) == 16  # every step
    assert convergence.FASHION.figure is not None
    assert convergence.FASHION.figure([noisy, silent]).axes
    with pytest.raises(ConfigurationError, match="noise='some'"):
        recipe.train(shrunk(settings["DP-SGD, ε = 1"], noise="some"), 0)


def test_sgd_without_clip_is_plain_sgd() -> None:
    """The bound of SGD without a clip is beyond every gradient, also where σ makes it the noise."""
    constants = shrunk(convergence.FASHION.settings["SGD, learning rate 0.1"], epochs=1)
    one, other = (recipe.train({**constants, "clip": clip}, 0) for clip in (1e6, 1e3))
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_landscape_rises_from_the_solution() -> None:
    constants = shrunk(
        landscape.LANDSCAPE.settings["DP-SAT"], records=50, points=3, **{"radius of plane": 2.0}
    )
    run = as_run(landscape.LANDSCAPE, "DP-SAT", constants)
    losses = run.measured["losses"]
    assert losses[1][1] == run.measured["centre"]
    assert run.measured["rise"] == pytest.approx(
        (sum(map(sum, losses)) - losses[1][1]) / 8 - losses[1][1]
    )
    assert landscape.figure([run]).axes


def test_adam_and_no_momentum_are_what_they_say() -> None:
    settings = OPTIMIZERS.settings
    adam, plain = (
        recipe.train(shrunk(settings[name], epochs=1), 0).private.optimizer
        for name in ("DP-Adam", "DP-SGD, no momentum")
    )
    assert isinstance(adam, torch.optim.Adam)
    assert adam.param_groups[0]["lr"] == 0.0002
    assert isinstance(plain, torch.optim.SGD)
    assert plain.param_groups[0]["momentum"] == 0
    assert settings["DP-SGD"] == FASHION[1].settings["DP-SGD"]  # shared with the table at ε = 3


def test_budgets_share_their_runs_with_the_tables_and_leave_noise_out_at_infinity() -> None:
    settings = budgets.BUDGETS.settings
    assert settings["DP-SAM, ε = 1"] == FASHION[0].settings["DP-SAM, the paper's steps"]
    assert budgets.BUDGETS.measure is FASHION[0].measure
    names = ("DP-SGD, ε = ∞", "DP-SAT, ε = ∞")
    runs = [as_run(budgets.BUDGETS, name, shrunk(settings[name], epochs=1)) for name in names]
    assert all(run.measured["epsilon"] is None for run in runs)
    assert budgets.figure(runs).axes


def test_all_averages_of_one_run_on_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(60, 3, 32, 32), torch.randint(10, (60,))
    for module in (recipe, cifar):
        monkeypatch.setattr(module, "load", lambda name: Pictures((x, y), (x[:20], y[:20])))
    small = {"population": 60, "batch": 30, "epochs": 2, "window": 2, "delta": 1e-3}
    run = as_run(cifar.CIFAR, "DP-SAT", {**cifar.CIFAR.settings["DP-SAT"], **small})
    assert all(0 <= run.measured[column.name] <= 1 for column in cifar.CIFAR.columns)
    assert cifar.CIFAR.figure is not None
    assert cifar.CIFAR.figure([run]).axes
