"""DPAdapter's experiments: what each setting trains, on a few made-up pictures."""

from __future__ import annotations

import json

import pytest
import torch

from steppe.papers import ExperimentRun, dp_adapter
from steppe.papers.dp_adapter import recipe, starts
from steppe.papers.pictures import Pictures
from steppe.papers.plans import plan_of

SETTINGS = starts.STARTS[0].settings
SMALL = {"population": 100, "batch": 20, "epochs": 1}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, 28, 28, generator=generator)
    y = torch.arange(300) % 10
    pictures = Pictures((x[:200], y[:200]), (x[200:], y[200:]))
    monkeypatch.setattr(recipe, "load", lambda name: pictures)
    recipe.halves.cache_clear()


def test_the_halves_have_no_class_in_common() -> None:
    public, private = recipe.halves("made up")
    for half in (public, private):
        assert len(half.train[1]) == 100
        assert half.train[1].unique().tolist() == [0, 1, 2, 3, 4]
    assert not {x.sum().item() for x in public.train[0]} & {
        x.sum().item() for x in private.train[0]
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_measured(name: str) -> None:
    constants = {**SETTINGS[name], **SMALL, "pretraining": {"batch_size": 10, "steps": 2}}
    if "perturbation_batch" in constants.get("method", {}):
        constants["method"] = {**constants["method"], "perturbation_batch": 40}
    found = recipe.measure(constants, 0)
    json.dumps(found)
    assert 0 <= found["accuracy"] <= 1
    assert found["epsilon"] <= 1.0
    if name == "no start":
        assert "robust" not in found
        return
    assert 0 <= found["robust"] <= 1
    costs = {"DPAdapter": 5.0, "kept for 14 updates": 3.0, "SAM": 2.0, "AMP": 2.0}
    assert found["cost"] == costs.get(name, 1.0)


def test_all_settings_of_a_table_spend_the_same_and_the_cheap_ones_are_cheap() -> None:
    for table in starts.STARTS:
        plans = [plan_of(constants) for constants in table.settings.values()]
        assert len({plan.sigma for plan in plans}) == 1
    kept = SETTINGS["kept for 14 updates"]["method"]
    batch = SETTINGS["standard"]["pretraining"]["batch_size"]
    assert 1 + kept["perturbation_batch"] / (kept["updates"] * batch) <= 2.5


def test_the_figure_is_drawn_from_stored_numbers() -> None:
    from matplotlib import pyplot

    runs = [
        ExperimentRun("SAM", seed, {}, {"robust": 0.5, "accuracy": 0.6}, 1.0, 1, "", "", "")
        for seed in range(2)
    ]
    runs.append(ExperimentRun("no start", 0, {}, {"accuracy": 0.5}, 1.0, 1, "", "", ""))
    figure = dp_adapter.STARTS[0].figure
    assert figure is not None
    drawn = figure(runs)
    (axes,) = drawn.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["SAM"]
    pyplot.close(drawn)
