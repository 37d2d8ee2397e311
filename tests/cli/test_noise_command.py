"""`steppe noise`: errors, memory and ε of every noise at one budget, and which one to take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_calls import Shell

import steppe
from steppe.accounting import Participation

RUN = "noise --population 600 --batch-size 50 --epochs 3 --delta 1e-4"


def test_every_noise_is_compared_at_one_budget(shell: Shell) -> None:
    result = shell.json(f"{RUN} --epsilon 2 --momentum 0.9")
    rows = {row["name"]: row for row in result["mechanisms"]}
    kinds = {"Gaussian", "Tree", "BandedToeplitz(8)", "BISR(8)", "BandInvMF(8)", "BLT(3)", "Dense"}
    assert kinds <= set(rows)
    assert {"Gaussian, Poisson", "BandedToeplitz(8), cyclic", "SqrtToeplitz"} <= set(rows)
    assert all(1.99 < row["epsilon"] <= 2.0 for row in rows.values())
    # By dense matrices: 36 steps, three turns twelve apart.
    turns, noise = Participation(3, 12), steppe.BLT(3, momentum=0.9)
    factor = noise.factor(36, turns)
    lag = np.subtract.outer(np.arange(36), np.arange(36))
    workload = np.where(lag >= 0, (1 - 0.9 ** (lag + 1.0)) / 0.1, 0.0)
    mean = float(np.square(workload @ factor.decoder()).sum(1).mean())
    sensitivity = float(np.linalg.norm(factor.encoder()[:, ::12].sum(1)))
    row = rows["BLT(3)"]
    expected = row["noise_multiplier"] * sensitivity * mean**0.5
    assert row["error"] == pytest.approx(expected, rel=1e-9)
    assert (row["vectors"], rows["Dense"]["vectors"], rows["Gaussian"]["vectors"]) == (3, 35, 0)
    fixed = [row["error"] for row in rows.values() if "FixedOrder" in row["sampling"]]
    assert rows["Dense"]["error"] == min(fixed)
    least = min(row["error"] for row in rows.values() if row["vectors"] <= 8)
    assert result["recommended"]["error"] <= 1.01 * least
    assert result["recommended"]["vectors"] <= 8


def test_a_noise_multiplier_is_that_of_correlated_noise(shell: Shell, tmp_path: Path) -> None:
    figure = tmp_path / "noise.svg"
    text = shell.ok(
        f"{RUN} --noise-multiplier 0.682 --weights 1000000 --vectors 1 --figure {figure}"
    )
    assert "36 steps, at most 3 a record" in text
    (line,) = (line for line in text.splitlines() if line.startswith("BLT(2) "))
    plan = steppe.Plan(
        noise_multiplier=0.682,
        delta=1e-4,
        population=600,
        batch_size=50,
        noise=steppe.BLT(2),
        sampling=steppe.FixedOrder(3),
        adjacency="zero-out",
    )
    assert float(line.split()[2]) == pytest.approx(0.682, rel=1e-3)  # found again from ε
    assert float(line.split()[3]) == pytest.approx(plan.epsilon_spent(), rel=1e-3)
    assert line.endswith("2 vectors, 8.0 MB")
    assert "recommended: noise=" in text
    assert figure.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epsilon 0", "--epsilon=0.0: must be finite and above 0"),
        (
            "--epsilon 2 --batch-size 700",
            "--batch-size=700.0: must not exceed the population of 600",
        ),
        ("--epsilon 2 --epochs 0", "epochs=0: must be a whole number"),
        ("--epsilon 2 --momentum 1", "momentum=1.0: must be below 1"),
        ("--epsilon 2 --figure noise.jpg", "figure='.jpg': must be one of"),
        ("", "one of the arguments --epsilon --noise-multiplier is required"),
    ],
)
def test_bad_input_is_refused(shell: Shell, options: str, message: str) -> None:
    code, out, err = shell(f"{RUN} {options}")
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("noise", ['name = "BLT", buffers = 2', 'name = "Dense"'])
def test_a_run_with_correlated_noise_is_planned(shell: Shell, tmp_path: Path, noise: str) -> None:
    inputs = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "table.npz", x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    (tmp_path / "run.toml").write_text(
        f"""
        data = {{ place = "{tmp_path}/table.npz", classes = 2 }}
        model = {{ name = "logistic" }}
        optimizer = {{ name = "SGD", lr = 0.5 }}
        [plan]
        epsilon = 2.0
        delta = 1e-3
        batch_size = 6
        adjacency = "zero-out"
        noise = {{ {noise} }}
        sampling = {{ name = "FixedOrder", epochs = 2 }}
        clip = {{ name = "Flat", bound = 0.5 }}
        point = "Here"
        """
    )
    result = shell.json(f"plan {tmp_path}/run.toml")
    assert result["plan"]["steps"] == 20
    assert "GaussianDpEvent" in result["event"]
    assert result["forecast"]["seconds_a_step"] > 0
