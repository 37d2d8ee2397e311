"""The demo says what it is, learns, and prints a statement that holds."""

from __future__ import annotations

import re

import pytest
import torch

from steppe import Plan
from steppe.demo import CLASSES, Size, main, pictures, train_privately

TINY = Size(records=300, held_out=60, batch=30, epochs=1)


def test_output_names_its_data_and_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    main(TINY)
    out = capsys.readouterr().out
    assert out.startswith("Synthetic data: 300 made-up")
    assert re.search(r"^accuracy on held-out synthetic data +\d+\.\d % +\d+\.\d %$", out, re.M)
    found = re.search(r"^ε, rounded up +(\d\.\d{3}) +∞$", out, re.M)
    assert found
    assert 1.99 <= float(found[1]) <= 2.0
    assert re.search(r"^steps +10 +10$", out, re.M)
    assert "Privacy statement" in out
    assert "NOT PRIVATE" not in out


def test_pictures_are_the_same_every_time_and_split() -> None:
    (x, y), (held_x, held_y) = pictures(TINY)
    (again, _), _ = pictures(TINY)
    assert torch.equal(x, again)
    assert (len(x), len(held_x)) == (300, 60)
    assert set(y.tolist()) == set(range(CLASSES))
    assert len(held_y) == 60


def test_the_private_model_learns() -> None:
    size = Size(records=3_000, held_out=500, batch=150, epochs=4)
    data, test = pictures(size)
    plan = Plan(
        noise_multiplier=1.0, delta=1e-5, population=3_000, batch_size=150, epochs=size.epochs
    )
    run, private = train_privately(data, test, plan)
    assert run.accuracy > 3 / CLASSES
    assert private.steps_done == plan.total_steps == 80
