"""From the records that a user has to the inputs that a model takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trained_runs

import steppe
from steppe.errors import SteppeError
from steppe.trained import Inputs

Runs = Callable[[str], Path]
TWO = {"age": [35, None], "visits": [10, 2], "sex": ["m", "f"]}
WANTED = [[-0.5, 1.0, 0.0, 1.0], [0.0, -0.6, 1.0, 0.0]]


class Frame:
    """What data frames of pandas and polars have in common."""

    def __init__(self, values: dict[str, list[Any]]) -> None:
        self._values, self.columns = values, list(values)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self._values[name], object)


def table_inputs() -> Inputs:
    columns = ["age", "visits", "sex"]
    table = {"place": "/patients.csv", **trained_runs.TABLE, "columns": columns}
    return Inputs(table, "float32", (4,))


@pytest.mark.parametrize(
    "records",
    [
        TWO,
        {"ill": ["no", "no"], **TWO},
        Frame(TWO),
        [[35, 10, "m"], [None, 2, "f"]],
        [
            {"sex": "m", "visits": 10.0, "age": "35"},
            {"age": float("nan"), "visits": 2, "sex": " f"},
        ],
        np.array([[35, 10, "m"], ["", 2, "f"]], object),
    ],
    ids=["columns", "with-target", "frame", "rows", "dicts", "array"],
)
def test_records_of_a_table_in_every_form(records: Any) -> None:
    assert table_inputs()(records).tolist() == [pytest.approx(row) for row in WANTED]


def test_a_csv_file_is_read_with_its_label_or_without(tmp_path: Path) -> None:
    with_label = {"ill": ["no", "yes"], **TWO}
    for name, columns in (("a.csv", TWO), ("b.csv", with_label)):
        trained_runs.write_csv(tmp_path / name, columns)
        assert table_inputs()(tmp_path / name).tolist() == [pytest.approx(row) for row in WANTED]


def test_what_the_run_read_is_what_records_become(runs: Runs, tmp_path: Path) -> None:
    from steppe.data import read

    columns = trained_runs.patients(30, seed=2)
    place = trained_runs.write_csv(tmp_path / "p.csv", columns)
    as_trained = read(place, **trained_runs.TABLE).train.x
    for records in (columns, place, str(place)):
        assert np.array_equal(steppe.load(runs("table")).inputs(records).numpy(), as_trained)


def numbers(kind: str = "float32", shape: tuple[int, ...] = (2,), **table: Any) -> Inputs:
    return Inputs(table or None, kind, shape)


BYTES = {"place": "/pictures.npz", "classes": 3}


def test_arrays_tensors_and_lists_are_scaled_alike(tmp_path: Path) -> None:
    inputs = numbers(place="/numbers.npz", bounds=[[0.0, 10.0], [0.0, 1.0]])
    np.save(tmp_path / "new.npy", np.array([[5.0, 1.0]]))
    forms = (
        np.array([[5.0, 1.0]]),
        torch.tensor([[5.0, 1.0]], dtype=torch.bfloat16),
        [[5, 1]],
        tmp_path / "new.npy",
    )
    for records in forms:
        found = inputs(records)
        assert (found.dtype, found.tolist()) == (torch.float32, [[0.0, 1.0]])


@pytest.mark.parametrize("table", [BYTES, {"name": "cifar-10"}], ids=["file", "public"])
def test_bytes_and_floats_of_pictures_are_the_same_inputs(table: dict[str, Any]) -> None:
    inputs = numbers(shape=(3, 4, 4), **table)
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    floats = torch.from_numpy(x).permute(0, 3, 1, 2) / 255
    assert torch.equal(inputs(x), floats)
    assert torch.equal(inputs(torch.from_numpy(x)), floats)
    assert torch.equal(inputs(floats), floats)


def test_a_run_that_python_made_takes_values_as_they_are() -> None:
    assert numbers()([[1, 2]]).tolist() == [[1.0, 2.0]]
    tokens = numbers("int64", (3,))(np.array([[1, 2, 3]], np.int32))
    assert (tokens.dtype, tokens.tolist()) == (torch.int64, [[1, 2, 3]])


LIKE = "give values like those that the run was trained on"
FORMS = "give an array, a tensor or nested lists"
OTHER = "give records of the shape that the run was trained on"
SHAPE = "inputs must have the shape (records, {}), with at least one record; "
UNKNOWN = (
    "are bytes, and the run's own code made the inputs, on a scale that is not known; scale them "
    "as it did, to float32"
)
NINES = (
    "holds values from 9 to 9, and the run's pictures were bytes, scaled to [0, 1]; store uint8, "
    "or divide by the largest value"
)
ONE = SHAPE.format(2) + "this is one record: give it an axis of records, as in records[None]"
BYTES_TOO = SHAPE.format("1, 4, 4") + "or be pictures of uint8, (records, height, width[, colour])"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"age": [1]}, "'dict': has no column 'visits'; give age, visits, sex"),
        (
            {**TWO, "age": [1]},
            "'dict': has columns of different lengths; give a value for each record",
        ),
        ([[35, 10]], "'record 0': must have 3 cells, age, visits, sex, not 2"),
        (
            [35, 10, "m"],
            "'record 0': is no row of a table; give a list of rows, each with age, visits, sex",
        ),
        (
            [[35, 10, "x"]],
            f"'list': record 0, column 'sex': must be one of its categories; {LIKE}",
        ),
        ([["old", 10, "m"]], f"'list': record 0, column 'age': must be a finite number; {LIKE}"),
        ([], "'list': must hold at least one record; give a record"),
        (3, "'int': is no table; give columns by name, or a list of rows"),
        ("new.npy", "'new.npy': there is no such file; give a CSV or .npy file"),
    ],
)
def test_what_is_refused_as_a_table(records: Any, message: str) -> None:
    with pytest.raises(SteppeError) as refused:
        table_inputs()(records)
    assert str(refused.value) == f"records={message}."


@pytest.mark.parametrize(
    ("inputs", "records", "message"),
    [
        (
            numbers(),
            TWO,
            f"'dict': has named columns, and the run was trained on arrays; {FORMS}",
        ),
        (numbers(), [["a"]], f"'list': cannot be read as numbers, a row a record; {FORMS}"),
        (numbers(), [[1, 2], [3]], f"'list': cannot be read as numbers, a row a record; {FORMS}"),
        (numbers(), [1.0, 2.0], f"(2,): {ONE}"),
        (numbers(), [[1.0]], f"(1, 1): {SHAPE.format(2)}{OTHER}"),
        (numbers(), np.zeros((0, 2)), f"(0, 2): {SHAPE.format(2)}{OTHER}"),
        (
            numbers(),
            [[1.0, float("nan")]],
            f"'list': record 0 has a value that is not finite; {LIKE}",
        ),
        (numbers("int64"), [[1.0]], "'list': must be whole numbers of type int64; convert them"),
        (numbers(shape=(1, 4, 4)), np.zeros((2, 4, 4), np.uint8), f"'ndarray': {UNKNOWN}"),
        (
            numbers(shape=(1, 4, 4), **BYTES),
            np.full((2, 1, 4, 4), 9.0),
            f"'ndarray': {NINES}",
        ),
        (numbers(shape=(1, 4, 4), **BYTES), np.zeros((2, 4, 4)), f"(2, 4, 4): {BYTES_TOO}"),
    ],
)
def test_what_is_refused_as_an_array(inputs: Inputs, records: Any, message: str) -> None:
    with pytest.raises(SteppeError) as refused:
        inputs(records)
    assert str(refused.value) == f"records={message}."


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", np.zeros((2, 2)))
    place = trained_runs.write_csv(tmp_path / "new.csv", {"age": [1]})
    with pytest.raises(
        SteppeError, match="the run was trained on a table with columns; give a CSV"
    ):
        table_inputs()(tmp_path / "new.npy")
    with pytest.raises(SteppeError, match=r"trained on arrays; give an \.npy file"):
        numbers()(place)
