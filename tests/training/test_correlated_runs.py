"""Runs with correlated noise: resumed exactly or not at all, and no noise left in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_cases import STEPS, broken, charged, interrupted, trainer
from training_cases import plan as usual_plan

import steppe
from steppe import accounting
from steppe.errors import DataError
from steppe.ledger import Ledger
from steppe.noise import CorrelatedRun
from steppe.runs import CheckpointFolder
from steppe.training import StepInfo, read


def plan(**changes: Any) -> steppe.Plan:
    """Two epochs of twelve batches, which are the usual 24 steps with batches of 33."""
    constants: dict[str, Any] = {
        "steps": None,
        "population": 400,
        "batch_size": 33.0,
        "noise": steppe.BLT(2),
        "sampling": steppe.FixedOrder(2),
        "adjacency": "zero-out",
    }
    return usual_plan(**(constants | changes))


def secrets(run: Path) -> list[tuple[int, int]]:
    """(step, numbers of noise) of every checkpoint in a run's folder."""
    found = []
    folder = CheckpointFolder(run / "checkpoints")
    for path in folder._manifests():
        stored = folder._load(path)
        streams = stored.state["private"]["noise"].get("streams", [])
        kept = [tensor for stream in streams for tensor in stream["kept"].values()]
        found.append((stored.step, sum(int(tensor.count_nonzero()) for tensor in kept)))
    return found


def test_a_run_stopped_by_hand_goes_on_with_the_same_noise(tmp_path: Path) -> None:
    assert plan().total_steps == STEPS
    interrupted(tmp_path / "run", 10, plan=plan())
    weights = 6 * 8 + 8 + 8 * 2 + 2
    newest, *_ = secrets(tmp_path / "run")
    assert newest == (10, 2 * weights)
    seen: list[torch.Tensor] = []
    original = CorrelatedRun.load

    def noted(self: CorrelatedRun, state: Any, step: int, like: Any) -> None:
        original(self, state, step, like)
        seen.append(self.state()["streams"][0]["kept"]["buffers"])

    stored = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()[0]
    assert stored is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CorrelatedRun, "load", noted)
        outcome = trainer(tmp_path / "run", plan=plan()).resume()
    (kept,) = seen
    assert torch.equal(kept, stored.state["private"]["noise"]["streams"][0]["kept"]["buffers"])
    assert outcome.steps == STEPS
    assert outcome.lost == 0
    assert charged(tmp_path / "run") == STEPS


def test_no_noise_is_left_when_the_run_is_over(tmp_path: Path) -> None:
    outcome = trainer(tmp_path / "run", plan=plan()).fit()
    assert secrets(tmp_path / "run") == [(STEPS, 0)]
    ledger = Ledger(tmp_path / "run" / "ledger.jsonl")
    assert outcome.epsilon == pytest.approx(plan().epsilon_spent(), rel=1e-6)
    assert ledger.epsilon(1e-4) == pytest.approx(plan().epsilon_spent(), rel=1e-6)
    (tmp_path / "run" / "result.json").unlink()
    assert trainer(tmp_path / "run", plan=plan()).resume().epsilon == outcome.epsilon


def test_no_noise_is_left_when_a_callback_ends_the_run(tmp_path: Path) -> None:
    def enough(info: StepInfo) -> bool:
        return info.step == 10  # with a checkpoint of its own

    outcome = trainer(tmp_path / "run", plan=plan(), callbacks=[enough]).fit()
    assert secrets(tmp_path / "run") == [(10, 0)]
    assert outcome.epsilon == pytest.approx(plan().epsilon_spent(10), rel=1e-6)


def test_a_run_whose_noise_is_lost_is_refused(tmp_path: Path) -> None:
    """Step 13 fails half way: it is charged, and what it drew is gone."""
    broken(tmp_path / "run", 13, plan=plan())
    files = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    before = charged(tmp_path / "run")
    assert before == 13
    with pytest.raises(DataError, match=r"checkpoint=10: is older than the 3 steps charged after"):
        trainer(tmp_path / "run", plan=plan()).resume()
    assert charged(tmp_path / "run") == before
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == files
    # A new run composes with it in one ledger.
    shared = tmp_path / "run" / "ledger.jsonl"
    trainer(tmp_path / "new", plan=plan(), ledger=shared).fit()
    total = Ledger(shared).epsilon(1e-4)
    assert total > plan().epsilon_spent()
    assert total == pytest.approx(_composed(plan()), rel=1e-6)


def _composed(run: steppe.Plan) -> float:
    return accounting.epsilon((*run.segments(13), *run.segments(STEPS)), run.delta, run.adjacency)


def test_independent_noise_in_a_fixed_order_goes_on_after_a_crash(tmp_path: Path) -> None:
    broken(tmp_path / "run", 13, plan=plan(noise=steppe.Gaussian()))
    outcome = trainer(tmp_path / "run", plan=plan(noise=steppe.Gaussian())).resume()
    assert outcome.lost == 3


TOML = """
[data]
place = "{place}"
classes = 2

[model]
name = "logistic"

[plan]
epsilon = 2.0
delta = 1e-4
batch_size = 40
adjacency = "zero-out"
noise = {{ name = "BLT", buffers = 3 }}
sampling = {{ name = "FixedOrder", epochs = 2 }}
clip = {{ name = "Flat", bound = 0.5 }}
point = "Here"

[optimizer]
name = "SGD"
lr = 0.5

[averages]
EMA = {{ decay = 0.9 }}

[train]
progress = false
"""


@pytest.fixture
def text(tmp_path: Path) -> str:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(460, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    place = tmp_path / "table.npz"
    np.savez(place, x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    return TOML.format(place=place)


def test_a_configuration_file_names_noise_and_sampling(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    outcome = read(tmp_path / "run.toml").trainer(tmp_path / "run").fit()
    assert outcome.steps == 20
    assert 1.99 < outcome.epsilon <= 2.0
    assert outcome.statement.correlated == "BLT"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("buffers = 3", "buffers = 0", r"plan\.noise\.buffers=0: must be a whole number"),
        ("buffers = 3", "bands = 3", r"plan\.noise\.bands=3: is not known here, only"),
        ("epochs = 2", "epochs = 0", r"plan\.sampling\.epochs=0: must be a whole number"),
        ('adjacency = "zero-out"', "", r"plan\.adjacency='add-remove': cannot be used with Fixed"),
        (
            'sampling = { name = "FixedOrder", epochs = 2 }',
            "steps = 20",
            r"plan\.noise=.*cannot be used with Poisson\(\): no account of correlated noise",
        ),
        ("batch_size = 40", "batch_size = 40\nsteps = 21", r"plan\.steps=21: are more than 2 epo"),
        ("batch_size = 40", "", r"plan\.batch_size.*is not chosen by rule with FixedOrder"),
        ("lr = 0.5", "", r"optimizer\.lr.*is not chosen by rule with FixedOrder"),
    ],
)
def test_a_file_without_account_is_refused_in_its_own_words(
    tmp_path: Path, text: str, old: str, new: str, message: str
) -> None:
    assert old in text
    (tmp_path / "run.toml").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "run.toml").assemble().known_plan.epsilon_spent()
