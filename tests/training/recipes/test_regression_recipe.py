"""Regressions by rule: their last weights, not only the averages, beat the mean of the targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.nn import functional as F

from steppe import Here, Plan, SeededSource
from steppe.records import as_records
from steppe.training import Trainer, read, recipes
from steppe.training.losses import LOSSES, curvature

MODULE = """
from torch import nn


def network():
    hidden = nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(64, 1), nn.Flatten(0))
"""
CONFIG = """
[data]
place = "numbers.npz"
{model}
[plan]
epsilon = 2.0

[train]
loss = "{loss}"
seed = 0
progress = false
"""
NETWORK = '[model]\nfactory = "regression_test_model:network"\n'


def numbers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A linear function of four normal columns, within ±1."""
    x = np.random.default_rng(0).normal(size=(count, 4))
    return x, np.clip(x @ np.array([0.3, -0.2, 0.1, 0.05]), -1, 1)


@pytest.mark.parametrize("model", ["", NETWORK], ids=["default", "network"])
@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "l1_loss"])
@pytest.mark.parametrize(
    "population", [1_600, pytest.param(20_000, marks=pytest.mark.slow, id="20000")]
)
def test_the_last_weights_of_a_regression_by_rule_beat_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, population: int, loss: str, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    x, y = numbers(population + 400)
    train, test = slice(population), slice(population, None)
    np.savez("numbers.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    (tmp_path / "regression_test_model.py").write_text(MODULE)
    (tmp_path / "run.toml").write_text(CONFIG.format(model=model, loss=loss))
    trainer = read("run.toml").trainer("run", source=SeededSource(0))
    assert trainer.plan.point == Here()
    outcome = trainer.fit()
    mean = torch.full((len(y[test]),), float(y.mean()), dtype=torch.float64)
    of_the_mean = float(LOSSES[loss](mean, torch.tensor(y[test])))
    for row in outcome.table:
        assert row["loss"] < 0.5 * of_the_mean, row["model"]


def test_the_rate_stays_below_what_a_heavy_ball_can_take() -> None:
    constants = {"population": 20_000, "epsilon": 2.0, "weights": 5, "columns": True}
    free = recipes.choose(**constants)  # type: ignore[arg-type]
    capped = recipes.choose(**constants, curvature=10.0)  # type: ignore[arg-type]
    assert free.rate > 2 * 1.9 / 10
    assert capped.rate == pytest.approx(0.25 * 2 * 1.9 / 10)
    assert capped.reasons["rate"] == (
        "a quarter of 2(1 + momentum)/λ, above which SGD may diverge; the curvature λ = "
        "10 follows from the sizes of inputs and layers"
    )
    assert capped.reasons["rate"] in str(capped)


def test_where_there_is_much_noise_it_decides_the_rate() -> None:
    recipe = recipes.choose(population=200, epsilon=0.1, weights=4_545, curvature=10.0)
    assert recipe.rate < 0.25 * 2 * 1.9 / 10
    assert recipe.reasons["rate"].endswith("more where there is less noise")


def test_curvature_is_that_of_a_linear_model_with_inputs_of_one() -> None:
    rows = as_records((torch.ones(3, 4), torch.zeros(3)))

    def squared(weights: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(weights[:4] @ torch.ones(4) + weights[4], torch.tensor(0.0))

    bend = torch.linalg.eigvalsh(hessian(squared, torch.zeros(5)))[-1]
    assert curvature(F.mse_loss, nn.Linear(4, 1), rows) == pytest.approx(float(bend))


@pytest.mark.parametrize("loss", [F.cross_entropy, F.binary_cross_entropy_with_logits, None])
def test_other_losses_have_no_cap(loss: object) -> None:
    rows = as_records((torch.ones(3, 4), torch.zeros(3)))
    assert curvature(loss, nn.Linear(4, 1), rows) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("inputs", "width"), [(1, 64), (1, 256), (4, 64), (100, 16)])
def test_networks_begin_with_less_curvature_than_the_rule_assumes(inputs: int, width: int) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(width, 1))
    rows = as_records((torch.ones(3, inputs), torch.zeros(3)))
    assumed = curvature(F.mse_loss, model, rows)
    for _ in range(20):
        x = torch.randint(2, (inputs,)).float() * 2 - 1
        parts = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        assert 2 * sum(float(part.square().sum()) for part in parts) < assumed  # type: ignore[operator]


def test_a_trainer_without_an_optimizer_is_careful_with_numbers_too(tmp_path: Path) -> None:
    x, y = (torch.tensor(part).float() for part in numbers(2_000))
    plan = Plan(epsilon=2.0, delta=1e-4, population=1_600, batch_size=256, steps=300)
    made = Trainer(
        nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        (x[:1_600] / 3, y[:1_600]),
        plan,
        loss=F.mse_loss,
        evaluate=(x[1_600:] / 3, y[1_600:]),
        source=SeededSource(0),
        run=tmp_path / "run",
        progress=False,
    )
    assert "SGD may diverge" in made.reasons["optimizer"]
    assert made.fit().table[0]["loss"] < 0.5 * float(y.var())
