"""The benchmark of clips for columns, on a made-up table and few steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import columns
from steppe import data
from steppe.training.recipes import model_kinds


def test_every_task_has_every_clip() -> None:
    settings = columns.experiment().settings
    assert len(settings) == 2 * 2 * 3
    assert {setting["clip"] for setting in settings.values()} == {0.1, 1.0, 2.0}


@pytest.mark.parametrize("model", ["logistic", "network"])
def test_a_small_run_learns_within_its_budget(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((900, columns.FEATURES), np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    split = data.Split(x[:600], y[:600]), data.Split(x[600:], y[600:])
    found = data.Dataset("adult", *split, 2, "made up", "")
    monkeypatch.setattr(columns, "load", lambda name: found)
    monkeypatch.setattr(model_kinds, "COLUMNS", replace(model_kinds.COLUMNS, steps=40))
    setting = {"model": model, "records": 500, "epsilon": 8.0, "clip": 1.0}
    measured = columns.measure(setting, seed=0)
    assert measured["accuracy"] > 0.6
    assert 7 < measured["epsilon"] <= 8.0
    assert measured == columns.measure(setting, seed=0)
    other = columns.measure({**setting, "clip": 0.1}, seed=0)
    assert other["loss"] != measured["loss"]
