"""Averages of checkpoints as the experiment computes them, beside the library's own classes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import steppe
from steppe import averaging
from steppe.papers import pictures, recycling
from steppe.papers.experiment import ExperimentRun
from steppe.papers.one_layer import Problem, cross_entropy
from steppe.papers.pictures import Pictures
from steppe.papers.plans import plan_of
from steppe.papers.recycling import accuracy, count, decays, intervals, theorems
from steppe.papers.recycling.checkpoints import (
    Comparison,
    NetworkOutputs,
    Parts,
    Recorder,
    combined,
    votes,
)

STEPS, KEEP = 40, 20
PARTS = Parts(public=slice(0, 40), validation=slice(40, 80), test=slice(80, 200))


class Walk:
    """A model that wanders, what was recorded of it, and the library's averages of the same."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.inputs, self.labels = torch.randn(200, 4), torch.randint(3, (200,))
        self.model = nn.Linear(4, 3)
        self.recorder = Recorder(self.model, STEPS, KEEP, (0.5, 0.9), (1.0,), every=5)
        self.ema = steppe.EMA(self.model, 0.9)
        self.window = steppe.Window(self.model, k=10)
        self.states: list[dict[str, torch.Tensor]] = []
        for step in range(1, STEPS + 1):
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 0.2 * torch.randn_like(parameter)
            self.recorder.update(self.model, step)
            self.ema.update(self.model)
            self.window.update(self.model)
            self.states.append({k: v.clone() for k, v in self.model.state_dict().items()})

    def right(self, average: averaging.AveragedWeights | averaging.Ensemble) -> float:
        inputs, labels = self.inputs[PARTS.test], self.labels[PARTS.test]
        return 100 * averaging.accuracy(self.model, average, inputs, labels)


@pytest.fixture(scope="module")
def walk() -> Walk:
    return Walk()


def test_the_last_checkpoints_are_kept(walk: Walk) -> None:
    assert len(walk.recorder.weights) == KEEP
    assert walk.recorder.moments == [25, 30, 35, 40]
    last = parameters_to_vector(walk.states[-1].values())
    assert torch.equal(walk.recorder.weights[-1], last)
    ema = walk.recorder.running["EMA 0.9"][-1]
    assert torch.allclose(ema, torch.cat([t.flatten() for t in walk.ema.weights().values()]))


def test_accuracies_are_those_of_the_library(walk: Walk) -> None:
    outputs = NetworkOutputs(nn.Linear(4, 3), walk.inputs, walk.labels)
    found = Comparison(walk.recorder, outputs, (10,), PARTS).measured()
    states = walk.states[-10:]
    assert found["UPA"] == pytest.approx(walk.right(walk.window))
    assert found["OPA"] == pytest.approx(walk.right(steppe.OPA(walk.model, states)))
    assert found["OMV"] == pytest.approx(walk.right(steppe.OMV(walk.model, states)))
    assert found["EMA tuned"] in ("EMA 0.5", "EMA 0.9")
    assert found["UPA gain"] == pytest.approx(found["UPA"] - found["baseline"])
    assert found["curves"]["steps"] == [30, 35, 40]
    assert {len(curve) for curve in found["curves"]["accuracy"].values()} == {3}
    assert found["curves"]["accuracy"]["UPA"][-1] == found["UPA"]
    assert found["curves"]["accuracy"]["EMA"][-1] == found["EMA"]


def test_selection_uses_the_public_part_alone(walk: Walk) -> None:
    """With labels that only one checkpoint gets right on the public part, it is the one chosen."""
    outputs = NetworkOutputs(nn.Linear(4, 3), walk.inputs, walk.labels)
    chosen = 7
    answers = outputs.probabilities(walk.recorder.weights[chosen]).argmax(1)
    labels = walk.labels.clone()
    labels[PARTS.public] = answers[PARTS.public]
    outputs.labels = labels
    found = Comparison(walk.recorder, outputs, (1,), PARTS).measured()
    expected = (answers[PARTS.test] == labels[PARTS.test]).double().mean()
    assert found["best UPA"] == pytest.approx(100 * float(expected))


def test_votes_break_ties_by_the_mean() -> None:
    outputs = torch.tensor([[[0.9, 0.1, 0.0]], [[0.4, 0.6, 0.0]]])
    assert votes(outputs).argmax(1).tolist() == [0]


def test_the_best_checkpoint_counts_most() -> None:
    worst, best = torch.zeros(1), torch.ones(1)
    assert combined([worst, worst, best], 0.2).item() == pytest.approx(0.8)


@pytest.mark.parametrize("period", [None, 4])
def test_a_whole_measurement(period: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, side: int | None = None) -> Pictures:
        torch.manual_seed(1)
        x, y = torch.randn(300, 1, 28, 28), torch.randint(10, (300,))
        return Pictures((x, y), (x, y))

    monkeypatch.setattr(accuracy, "load", load)
    monkeypatch.setattr(accuracy, "PARTS", Parts(slice(0, 100), slice(100, 200), slice(200, 300)))
    table = {
        **accuracy.FASHION.settings["ε = 8"],
        "population": 300,
        "batch": 20,
        "steps": 12,
        "keep": 10,
        "delta": 1e-4,
        "period": period,
    }
    found = accuracy.measure(table, 0)
    assert found["epsilon"] <= 8.0
    assert all(math.isfinite(found[column.name]) for column in accuracy.FASHION.columns)
    run = ExperimentRun("ε = 8", 0, table, found, 1.0, 1, "", "", "")
    assert accuracy.FASHION.figure is not None
    assert accuracy.FASHION.figure([run]) is not None


def test_intervals_widen_with_the_distance_between_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(10, size=300)
    inputs = random.standard_normal((300, 785)).astype(np.float32) / 10
    made_up = (Problem(inputs, labels, cross_entropy), inputs, labels)
    monkeypatch.setattr(intervals, "pictures", lambda: made_up)
    usual = intervals.INTERVALS.settings["ε = 8"]
    table = {**usual, "population": 300, "batch": 10, "steps": 130, "spacing": 6, "delta": 1e-4}
    found = intervals.measure(table, 0)
    assert 0 < found["last"] < found["spaced"] < 1.5 * found["independent"]
    run = ExperimentRun("ε = 8", 0, table, found, 1.0, 1, "", "", "")
    assert intervals.INTERVALS.figure is not None
    assert intervals.INTERVALS.figure([run]) is not None


def test_pictures_in_colour_have_their_own_constants() -> None:
    x = torch.full((1, 3, 2, 2), 0.5)
    expected = (0.5 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor(
        [0.2470, 0.2435, 0.2616]
    )
    assert torch.allclose(pictures._normalised(x)[0, :, 0, 0], expected)


def test_the_middle_of_pictures() -> None:
    x = torch.arange(36.0).view(1, 1, 6, 6)
    assert pictures._middle(x, None) is x
    assert pictures._middle(x, 2).flatten().tolist() == [14, 15, 20, 21]


def test_the_network_is_made_for_the_colours() -> None:
    x, y = torch.randn(40, 3, 28, 28), torch.randint(10, (40,))
    table = {**accuracy.CIFAR.settings["ε = 8"], "population": 40, "batch": 10, "steps": 1}
    plan = plan_of({**table, "delta": 1e-3})
    fitted = pictures.fit(Pictures((x, y), (x, y)), table["model"], plan, 0, rate=1.0)
    assert sum(weight.numel() for weight in fitted.model.parameters()) == 28_058


def test_theorem_2_1_averages_beat_the_last_iterate() -> None:
    found = theorems.measure_risk(
        {"records": 50, "dimension": 20, "rho": 0.5, "left slope": 0.25}, 0
    )
    assert found["UPA"] < found["last"]
    assert found["PDA"] < found["last"]
    assert found["steps"] == 125


def test_theorem_3_1_bias_shrinks_with_the_gap() -> None:
    near, far = (
        theorems.measure_variance({"burn-in": 8.0, "gap": gap, "checkpoints": 5, "start": 5.0}, 0)[
            "relative"
        ]
        for gap in (0.1, 6.0)
    )
    assert near < 0.3
    assert far == pytest.approx(1, abs=0.01)


def test_a_slow_average_lags_behind_and_every_decay_has_its_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = torch.randn(60, 1, 28, 28), torch.randint(10, (60,))
    monkeypatch.setattr(decays, "load", lambda name, side: Pictures((x, y), (x, y)))
    usual = decays.DECAY_TABLE.settings["Fashion-MNIST, ε = 8"]
    table = {**usual, "population": 60, "batch": 20, "steps": 5, "delta": 1e-3}
    found = decays.measure(table, 0)
    # The weight of the past is (1 + t)/(10 + t) for the first steps, below all of the three.
    assert found["β = 0.9"] == found["β = 0.999"] == found["β = 0.9999"]
    assert all(math.isfinite(found[column.name]) for column in decays.DECAY_TABLE.columns)
    run = ExperimentRun("ε = 8", 0, table, found, 1.0, 1, "", "", "")
    assert decays.DECAY_TABLE.figure is not None
    assert decays.DECAY_TABLE.figure([run]) is not None


def test_too_few_checkpoints_are_worse_and_too_many_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(count, "_RUNS", 4000)
    setting = count.COUNT.settings["T = 20"]
    found = count.measure(setting, 0)
    assert 10 < found["enough"] < 64
    assert found["error"] < 0.3 * found["error of two"]
    assert found["error"] == pytest.approx(found["error of most"], rel=0.1)
    assert found["truth"] == pytest.approx(0.3944, abs=1e-3)  # as in the table of Theorem 3.1
    assert found["biases"][-1] < found["biases"][0] < 0.02
    run = ExperimentRun("T = 20", 0, setting, found, 1.0, 1, "", "", "")
    assert count.COUNT.figure is not None
    assert count.COUNT.figure([run]) is not None


def test_every_setting_can_be_stored() -> None:
    names = [experiment.name for experiment in recycling.EXPERIMENTS]
    assert len(set(names)) == len(names)
    for experiment in recycling.EXPERIMENTS:
        for constants in experiment.settings.values():
            assert json.loads(json.dumps(constants)) == constants
