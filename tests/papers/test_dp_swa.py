"""The experiments of DP-SWA on small problems, where the answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from steppe.papers import dp_swa
from steppe.papers.dp_swa import linear, logistic, networks, spread, theorem
from steppe.papers.experiment import Experiment, ExperimentRun
from steppe.papers.one_layer import Problem, cross_entropy
from steppe.papers.pictures import Pictures


def drawn(experiment: Experiment, constants: Any, found: Any) -> bool:
    """Whether the figure can be drawn from a stored run, and every column is there."""
    setting = next(iter(experiment.settings))
    runs = [ExperimentRun(setting, seed, constants, found, 1.0, 1, "", "", "") for seed in (0, 1)]
    assert all(math.isfinite(found[column.name]) for column in experiment.columns)
    assert experiment.figure is not None
    return experiment.figure(runs) is not None


def test_linear_regression_finds_the_optimum_and_the_average_is_nearer() -> None:
    usual = linear.LINEAR.settings["ε = 8"]
    table = {**usual, "records": 512, "features": 8, "epsilon": 20.0, "delta": 1e-6, "rate": 0.02}
    found = linear.measure({**table, "epochs": 20}, 0)
    assert found["SWA"] < found["SGD"] < found["start"]
    assert found["SWA"] < 0.2
    assert found["epsilon"] <= 20.0
    assert list(found["by cycle"]) == [str(cycle) for cycle in linear._CYCLES]
    assert found["curve"]["SWA"][-1] == pytest.approx(found["SWA"])
    assert drawn(linear.LINEAR, table, found)
    assert drawn(linear.EPSILON, table, found)


def test_theorem_bound_holds_and_the_printed_condition_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(theorem, "_TIMES", (16, 64, 256))
    for name in ("cycle 1", "cycle 16"):
        found = theorem.measure(theorem.THEOREM.settings[name], 0)
        assert all(np.less(found["by time"], found["corrected by time"]))
    assert drawn(theorem.THEOREM, theorem.THEOREM.settings["cycle 1"], found)
    wild = theorem.THEOREM.settings["‖A‖ = 8, α = 3 as the printed condition allows"]
    assert not theorem.measure(wild, 0)["measured"] < 1e10


def test_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(10, size=600)
    inputs = random.standard_normal((600, 785)).astype(np.float32) / 28
    inputs[np.arange(600), labels] += 1
    made_up = (Problem(inputs, labels, cross_entropy), inputs, labels)
    monkeypatch.setattr(logistic, "pictures", lambda: made_up)
    table = {
        **logistic.LOGISTIC.settings["ε = 8"],
        "population": 600,
        "batch": 10,
        "delta": 1e-4,
        "epsilon": 10.0,
        "rate": 1.0,
    }
    found = logistic.measure(table, 0)
    assert found["SWA"] >= found["SGD"] > 50
    assert len(found["epochs"]) == 20
    assert drawn(logistic.LOGISTIC, table, found)


def test_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, side: int | None = None) -> Pictures:
        torch.manual_seed(1)
        x, y = torch.randn(100, 1, 28, 28), torch.randint(10, (100,))
        return Pictures((x, y), (x, y))

    monkeypatch.setattr(networks, "load", load)
    table = {
        **networks.FASHION.settings["ε = 8"],
        "population": 100,
        "batch": 20,
        "epochs": 4,
        "warmup": 0.2,
        "delta": 1e-4,
        "distances": [0.5, 1.0],
    }
    found = networks.measure(table, 0)
    assert len(found["last"]["SWA"]) == 4
    assert found["steps"] == 20
    assert drawn(networks.FASHION, table, found)


def test_curves_by_seed_begin_to_differ_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(100, 1, 28, 28), torch.randint(10, (100,))
    monkeypatch.setattr(spread, "load", lambda name: Pictures((x, y), (x, y)))
    usual = spread.SPREAD.settings["ε = 8"]
    table = {**usual, "population": 100, "batch": 20, "epochs": 4, "warmup": 0.6, "delta": 1e-4}
    found = spread.measure(table, 0)
    sgd, swa = found["curves"]["SGD"], found["curves"]["SWA"]
    assert len(sgd) == len(swa) == 4
    assert sgd[:2] == swa[:2]
    assert found["gain"] == swa[-1] - sgd[-1]
    assert drawn(spread.SPREAD, table, found)


def test_names_are_unique() -> None:
    names = [experiment.name for experiment in dp_swa.EXPERIMENTS]
    assert len(set(names)) == len(names)
