"""The loops that are timed do train, each on batches of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import loop
from benchmarks.cases import CASES, Case

[LOGISTIC] = [case for case in CASES if case.model == "e-logistic"]


@pytest.mark.filterwarnings("ignore")  # the peer warns about its own hooks
@pytest.mark.parametrize("name", loop.LOOPS)
def test_a_step_moves_the_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[torch.nn.Module] = []
    build = Case.new_model

    def noted(case: Case) -> torch.nn.Module:
        models.append(build(case))
        return models[-1]

    monkeypatch.setattr(Case, "new_model", noted)
    monkeypatch.setattr(loop, "RECORDS", 2000)
    step = loop.LOOPS[name](LOGISTIC, LOGISTIC.new_batch(2000))
    [model] = models
    for _ in range(6):  # beyond the end of an epoch of four batches
        before = [weight.detach().clone() for weight in model.parameters()]
        step()
        for old, new in zip(before, model.parameters(), strict=True):
            assert not torch.equal(old, new)


@pytest.mark.filterwarnings("ignore")
def test_the_command_stores_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "RECORDS", 1000)
    monkeypatch.setattr(loop, "MODELS", ("e-logistic",))
    path = tmp_path / "loop.json"
    assert loop.main(["--rounds", "1", "--output", str(path)]) == 0
    stored = json.loads(path.read_text())
    assert stored["e-logistic"].keys() == loop.LOOPS.keys()
    assert stored["e-logistic"][loop.PLAIN]["ratio"] == 1.0
    assert "e-logistic, batches of 512" in capsys.readouterr().out
