"""How it is known that records stand alone: asked for, said, and shared by a resumed run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_cases import STEPS, pairs, plan, trainer

from steppe.errors import ConfigurationError, IsolationError, PrivacyWarning
from steppe.training import Trainer, read, resume

WARNING = "isolation is only probed, not proven: ε is false if records influence each other."
FOUND = {"proven": "proven", "each": "isolated", "probed": "probed"}


class Reads(nn.Linear):
    """Treats every record alone, which its operations do not show: Python reads a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        float(out.detach().sum())
        return out


def made(run: Path, isolation: str = "proven", **changes: Any) -> Trainer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return trainer(run, isolation=isolation, averages=(), store_every=None, **changes)


@pytest.mark.parametrize("isolation", FOUND)
def test_a_run_says_how_it_is_known(tmp_path: Path, isolation: str) -> None:
    outcome = made(tmp_path / "run", isolation).fit()
    found = FOUND[isolation]
    assert outcome.statement.isolation == found
    for name in ("statement.json", "result.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["isolation"] == found
    probed = isolation == "probed"
    assert str(outcome).startswith(f"WARNING: {WARNING}\n") is probed
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert (f"WARNING: {WARNING}" in log) is probed
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert settings["isolation"] == isolation


def test_only_a_probed_run_warns(tmp_path: Path) -> None:
    usual = {"averages": (), "store_every": None}
    with pytest.warns(PrivacyWarning, match="only probed, not proven"):
        trainer(tmp_path / "run", isolation="probed", **usual)
    trainer(tmp_path / "run", isolation="each", **usual)  # a warning would be an error


def test_what_is_not_proven_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="must not be read by Python"):
        made(tmp_path / "run", model=Reads(6, 2))
    assert not (tmp_path / "run").exists()
    few = plan(steps=2, batch_size=4)  # since every record has a process
    outcome = made(tmp_path / "run", "each", model=Reads(6, 2), plan=few).fit()
    assert outcome.statement.isolation == "isolated"
    outcome = made(tmp_path / "probed", "probed", model=Reads(6, 2), plan=few).fit()
    assert outcome.statement.isolation == "probed"


@pytest.mark.parametrize("isolation", ["probe", "isolated", None, True, ["each"]])
def test_there_are_three_ways(tmp_path: Path, isolation: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"isolation=.*: must be one of 'proven', 'each'"):
        made(tmp_path / "run", isolation)
    assert not (tmp_path / "run").exists()


def stopped(run: Path, isolation: str) -> None:
    made(run, isolation, callbacks=[lambda moment: moment.step == 7]).fit()


@pytest.mark.parametrize(("then", "now"), [("proven", "probed"), ("each", "proven")])
def test_a_resumed_run_shares_it(tmp_path: Path, then: str, now: str) -> None:
    stopped(tmp_path / "run", then)
    rule = f"isolation='{now}': differs from the value that the run began with, '{then}'"
    with pytest.raises(ConfigurationError, match=rule):
        made(tmp_path / "run", now).resume()
    outcome = made(tmp_path / "run", then).resume()
    assert outcome.steps == STEPS
    assert outcome.statement.isolation == FOUND[then]


def test_a_file_says_it_and_the_run_is_resumed_with_it(tmp_path: Path) -> None:
    import numpy as np

    (x, y), (held_out, labels) = pairs(400), pairs(100, seed=1)
    arrays = {"x_train": x, "y_train": y, "x_test": held_out, "y_test": labels}
    np.savez(tmp_path / "own.npz", **{name: part.numpy() for name, part in arrays.items()})
    (tmp_path / "run.toml").write_text(
        f"""
[data]
place = "{tmp_path / "own.npz"}"
classes = 2
[model]
name = "logistic"
[plan]
noise_multiplier = 2.0
delta = 1e-4
population = 400
batch_size = 40
steps = 6
clip = {{ name = "Flat", bound = 1.0 }}
point = "Here"
[optimizer]
name = "SGD"
lr = 0.5
[averages]
[train]
isolation = "each"
progress = false
"""
    )
    config = read(tmp_path / "run.toml")
    run = tmp_path / "run"
    config.trainer(run, callbacks=[lambda moment: moment.step == 3]).fit()
    assert 'isolation = "each"' in (run / "run.toml").read_text()
    outcome = resume(run)
    assert (outcome.steps, outcome.statement.isolation) == (6, "isolated")
    (run / "run.toml").write_text((run / "run.toml").read_text().replace('"each"', '"proven"'))
    with pytest.raises(ConfigurationError, match="isolation='proven': differs from the value"):
        resume(run)
