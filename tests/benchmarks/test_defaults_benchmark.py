"""The benchmark of the defaults, on a tiny data set and a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import defaults, patch_features
from steppe import data
from steppe.models import Patches
from steppe.papers import pictures
from steppe.papers.experiment import ExperimentRun


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 600)
    x = np.zeros((600, 28, 28), np.uint8)
    x[np.arange(600), 2 * y + 3] = 255  # the label is the height of a bright line
    split = data.Split(x[:500], y[:500]), data.Split(x[500:], y[500:])
    found = data.Dataset("mnist", *split, 10, "made up", "")
    for module in (defaults, pictures.data, patch_features.data):
        monkeypatch.setattr(module, "load", lambda name: found)
    monkeypatch.setitem(Patches.fit.__kwdefaults__, "pictures", 1_500)  # type: ignore[arg-type]
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    defaults.scattered.cache_clear()
    pictures.load.cache_clear()
    patch_features.features.cache_clear()
    patch_features.front_end.cache_clear()


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return dict(defaults.experiment().settings)


def test_every_recipe_is_there_for_every_budget(settings: dict[str, Any]) -> None:
    assert len(settings) == 3 * 3 * 2 + 4 + 3 * 3
    baseline = settings["mnist, ε = 1, Opacus example"]
    assert (baseline["batch"], baseline["clip"], baseline["rate"]) == (64, 1.0, 0.1)
    assert baseline["model"] == settings["mnist, ε = 1, same network"]["model"]


# Opacus' search for the noise passes through values where its orders do not suffice.
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("recipe", defaults.RECIPES)
def test_a_run_scores_all_models_within_its_budget(settings: dict[str, Any], recipe: str) -> None:
    setting = {**settings[f"mnist, ε = 3, {recipe}"], "steps": 12, "batch": 100, "delta": 1e-3}
    found = defaults.measure(setting, seed=0)
    assert {"accuracy", "last", "EMA", "SWA", "Window", "PolynomialDecay"} <= set(found)
    assert 2.2 < found["epsilon"] <= 3.0  # noise by RDP leaves a part of the budget unused
    if recipe == "scattering":
        assert found["accuracy"] > 0.3  # ten classes, ten lines: far from guessing after 12 steps
    elif recipe == "same network":
        assert found["accuracy"] == found["EMA"]
    else:
        assert found["accuracy"] == found["last"]


def test_table_and_picture_of_stored_runs(tmp_path: Path) -> None:
    runs = [
        ExperimentRun(
            setting="a",
            seed=seed,
            constants={"data": "mnist", "epsilon": 2.0, "recipe": "scattering"},
            measured={"accuracy": 0.98 + 0.01 * seed},
            seconds=1.0,
            threads=1,
            date="",
            command="",
            version="",
        )
        for seed in (0, 1)
    ]
    text = defaults.table(runs)
    assert "98.50 ± 0.71 (2 of 5 seeds)" in text
    assert text.count("–") == 4 * 13 - 1
    defaults.draw(runs, tmp_path / "defaults.svg")
    assert "<svg" in (tmp_path / "defaults.svg").read_text()


def test_the_rates_of_the_settings_are_finite(settings: dict[str, Any]) -> None:
    assert all(torch.isfinite(torch.tensor(float(s["rate"]))) for s in settings.values())
