"""The benchmark of networks for tables, on made-up records and few steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import tables
from steppe.training.recipes import model_kinds


def test_every_task_has_every_model() -> None:
    assert len(tables.experiment().settings) == 3 * 3


@pytest.mark.parametrize("model", tables.MODELS)
@pytest.mark.parametrize("task", ["adult", "diamonds"])
def test_a_small_run_learns(monkeypatch: pytest.MonkeyPatch, task: str, model: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(900, 9, generator=generator)
    y = x[:, 0] - x[:, 1]
    y = y if task == "diamonds" else (y > 0).long()
    parts = tables.Parts(x[:600], y[:600], x[600:], y[600:], [[3, 6]])
    monkeypatch.setattr(tables, "parts_of", lambda *_: parts)
    for kind in ("COLUMNS", "NUMBERS"):
        brief = replace(getattr(model_kinds, kind), steps=60)
        monkeypatch.setattr(model_kinds, kind, brief)
    setting = {"task": task, "records": 600, "epsilon": 8.0, "model": model}
    measured = tables.measure(setting, seed=0)
    assert measured["score"] > (0.3 if task == "diamonds" else 0.6)
    assert 7 < measured["epsilon"] <= 8.0
