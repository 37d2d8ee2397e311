"""Records that are kept out of training: each decides for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe import data
from steppe.errors import SteppeError

LINES = [f"{n},{n * n % 97},{'no' if n % 3 else 'yes'}" for n in range(400)]
OPTIONS: dict[str, Any] = {"target": "ill", "classes": ("no", "yes")}


def read(folder: Path, lines: list[str], **options: Any) -> data.Dataset:
    path = folder / "visits.csv"
    path.write_text("\n".join(["age,visits,ill", *lines]))
    found = data.read(path, **OPTIONS, holdout=0.2, **options)
    assert isinstance(found, data.Dataset)
    return found


def ages(split: data.Split) -> set[float]:
    return {float(row[0]) for row in split.x}


def test_a_record_s_part_depends_on_that_record_alone(tmp_path: Path) -> None:
    whole = read(tmp_path, LINES)
    assert ages(whole.train) | ages(whole.test) == set(map(float, range(400)))
    assert not ages(whole.train) & ages(whole.test)
    assert 50 < len(whole.test) < 110
    assert whole.held_out == 0.2
    without = read(tmp_path, LINES[1:200] + LINES[201:])  # also where rows have other numbers
    assert ages(without.test) == ages(whole.test) - {0.0, 200.0}
    turned = read(tmp_path, LINES[::-1])
    assert ages(turned.test) == ages(whole.test)
    doubled = read(tmp_path, LINES + LINES)  # equal records are never on both sides
    assert ages(doubled.test) == ages(whole.test)
    # Which columns are used, and how they are scaled, decides nothing.
    scaled = read(tmp_path, LINES, columns=["age"], bounds={"age": (0, 400)})
    assert len(scaled.test) == len(whole.test)


def test_bounds_are_not_read_off_held_out_records(tmp_path: Path) -> None:
    one = read(tmp_path, LINES, bounds="records")
    kept_out = ages(read(tmp_path, LINES).test)
    kept = [line for line in LINES if float(line.split(",")[0]) not in kept_out]
    path = tmp_path / "kept.csv"
    path.write_text("\n".join(["age,visits,ill", *kept]))
    alone = data.read(path, **OPTIONS, bounds="records")
    assert isinstance(alone, data.Dataset)
    assert alone.bounds == one.bounds


def test_arrays_are_split_before_they_are_scaled(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    one = data.read(tmp_path / "own.npz", classes=2, holdout=0.3)
    np.savez(tmp_path / "own.npz", x=x[1:], y=y[1:])
    other = data.read(tmp_path / "own.npz", classes=2, holdout=0.3)
    assert isinstance(one, data.Dataset)
    assert isinstance(other, data.Dataset)
    assert 60 < len(one.test) < 120
    assert abs(len(one.test) - len(other.test)) <= 1
    np.testing.assert_array_equal(one.test.x[-50:], other.test.x[-50:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holdout": 0.0}, r"holdout=0\.0: must lie strictly between 0 and 1; write 0\.2"),
        ({"holdout": "0.2"}, r"holdout='0\.2': must be a real number"),
        ({"holdout": 0.2, "test": "other.csv"}, "cannot be given beside a test file"),
        ({"holdout": 1e-9}, r"holdout=1e-09: leaves no record to evaluate on"),
        ({"holdout": 1 - 1e-9}, r"leaves no record to train on"),
    ],
)
def test_what_cannot_be_held_out(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["age,visits,ill", *LINES]))
    with pytest.raises(SteppeError, match=message):
        data.read(path, **OPTIONS, **options)


def test_a_test_part_of_its_own_leaves_nothing_to_hold_out(tmp_path: Path) -> None:
    x, y = np.zeros((9, 2)), np.zeros(9, np.int64)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(SteppeError, match=r"holdout=0\.2: the arrays have a test part already"):
        data.read(tmp_path / "own.npz", classes=2, holdout=0.2)
    with pytest.raises(SteppeError, match=r"holdout=0\.2: is for files"):
        data.read("tables:make", classes=2, holdout=0.2)


def test_targets_are_scaled_by_declared_bounds(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("rooms,price\n1,100\n2,300\n3,900\n")
    found = data.read(path, target="price", numbers=True, target_bounds=(100, 500), test=None)
    assert isinstance(found, data.Dataset)
    assert found.train.y.tolist() == [-1.0, 0.0, 1.0]  # clamped
    assert found.target_bounds == (100.0, 500.0)
    other = tmp_path / "other.csv"
    other.write_text("rooms,price\n3,900\n")
    found = data.read(path, target="price", numbers=True, target_bounds=(100, 500), test=other)
    assert isinstance(found, data.Dataset)
    assert found.test.y.tolist() == [3.0]  # a score must not be better than the truth
    with pytest.raises(SteppeError, match="target_bounds"):
        data.read(path, target="price", numbers=True, target_bounds=(5, 5))
    with pytest.raises(SteppeError, match="is for numbers, and the targets are labels"):
        data.read(path, target="price", classes=2, target_bounds=(0, 1))
