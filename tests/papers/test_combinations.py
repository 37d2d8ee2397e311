"""Methods together: what each setting changes, on a few made-up pictures."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steppe.clipping import Flat, Quantile
from steppe.papers import ExperimentRun, combinations
from steppe.papers.dp_sat import measured, recipe
from steppe.papers.dp_sat.accuracy import FASHION, RADIUS
from steppe.papers.pictures import Pictures
from steppe.plan import Plan
from steppe.points import SAT
from steppe.private.make import make_private

SETTINGS = combinations.COMBINATIONS.settings


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, 28, 28, generator=generator)
    y = torch.randint(10, (300,), generator=generator)
    pictures = Pictures((x[:200], y[:200]), (x[200:], y[200:]))
    for module in (recipe, measured):
        monkeypatch.setattr(module, "load", lambda name: pictures)


def test_each_name_says_what_the_plan_has() -> None:
    for name, constants in SETTINGS.items():
        plan = measured.plan({**constants, "epsilon": 3.0})
        assert isinstance(plan.point, SAT) == ("SAT" in name)
        assert (plan.l2 > 0) == ("L2" in name)
        assert isinstance(plan.clip, Quantile if "quantile" in name else Flat)


def test_all_combinations_spend_the_same() -> None:
    plans = [measured.plan(constants) for constants in SETTINGS.values()]
    assert len({plan.sigma for plan in plans}) == 1
    assert all(plan.epsilon_spent() <= 3.0 for plan in plans)


def test_a_moving_clip_turns_the_learning_rate() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    plan = Plan(delta=1e-3, noise_multiplier=1.0, population=40, batch_size=10, steps=3)
    data = (torch.randn(40, 4), torch.randint(2, (40,)))
    private = make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for bound, rate in ((0.1, 2.0), (0.4, 0.5), (0.01, 20.0)):
        measured._keep_step_length(private, SETTINGS["quantile"], bound)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_moving_clip_moves_and_is_stored() -> None:
    small = {"population": 200, "batch": 50, "epochs": 3}
    runs = []
    for name in ("DP-SGD", "SAT + L2 + quantile"):
        constants = {**SETTINGS[name], **small}
        found = json.loads(json.dumps(measured.measure(constants, 0)))
        runs.append(ExperimentRun(name, 0, constants, found, 1.0, 1, "", "", ""))
    fixed, moving = (run.measured for run in runs)
    assert fixed["clips"] == []
    assert moving["clips"][-1] > moving["clips"][0]  # norms start far above the clip
    assert 0 <= moving["averaged"] <= 1
    assert combinations.figure(runs).axes


def test_tables_ask_for_the_same_run_in_the_same_words() -> None:
    epsilon_3 = FASHION[1]
    assert SETTINGS["DP-SGD"] == epsilon_3.settings["DP-SGD"]
    assert SETTINGS["SAT"] == epsilon_3.settings["DP-SAT"]
    assert RADIUS.settings["DP-SAT, ρ = 0.03"] == epsilon_3.settings["DP-SAT"]
    assert RADIUS.settings["DP-SAT-Momentum, ρ = 0.1"] == epsilon_3.settings["DP-SAT-Momentum"]
    assert combinations.COMBINATIONS.measure is epsilon_3.measure is RADIUS.measure
