"""Users' own data: what is read, and what is refused with which words."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from steppe import Plan, data, make_private
from steppe.data import Dataset, MappedDataset
from steppe.errors import ConfigurationError, DataError, SteppeError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def arrays(folder: Path, form: str, **parts: Any) -> Path:
    if form == "npz":
        np.savez(folder / "mine.npz", **parts)
        return folder / "mine.npz"
    for name, part in parts.items():
        np.save(folder / f"{name}.npy", part)
    return folder


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_arrays_with_and_without_a_test_part(tmp_path: Path, form: str) -> None:
    found = data.read(arrays(tmp_path, form, x=X, y=Y), classes=3)
    assert isinstance(found, Dataset)
    assert found.train.x.dtype == np.float32
    assert found.train.y.tolist() == Y.tolist()
    train, test = found.records()
    assert len(train) == 6
    assert test is None

    place = arrays(tmp_path, form, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    both = data.read(place, classes=3)
    assert isinstance(both, Dataset)
    assert (len(both.train), len(both.test), both.classes) == (6, 2, 3)
    assert both.sha256 == ""  # a hash of private records is never made


@pytest.mark.parametrize("form", ["npz", "npy"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"inputs": X, "y": Y}, "must hold x_train and y_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "x_test with y_test or neither"),
        ({"x": X, "y": Y[:5]}, r"x of shape \(6, 2\) and y of shape \(5,\)"),
        ({"x": X, "y": Y[:, None]}, "one row for each record"),
        ({"x": X[:0], "y": Y[:0]}, "one row for each record"),
        ({"x": X.astype(str), "y": Y}, "must be numbers"),
        ({"x": X, "y": Y + 0.5}, "labels of type float64 must be whole numbers"),
        ({"x": X, "y": Y + 1}, "labels must lie from 0 to 2"),
        ({"x": X, "y": Y - 1}, "labels must lie from 0 to 2"),
        ({"x": np.array([{}] * 6), "y": Y}, r"plain array.* \(it holds objects, or is no"),
        ({"x": np.where(X == 7, np.nan, X), "y": Y}, "record 3 has a value that is not finite"),
        ({"x": X[:, 0], "y": Y}, r"x of shape \(6,\)"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :1], "y_test": Y}, "must be like training"),
    ],
)
def test_arrays_that_are_refused(
    tmp_path: Path, form: str, parts: dict[str, Any], message: str
) -> None:
    place = arrays(tmp_path, form, **parts)
    with pytest.raises(DataError, match=message):
        data.read(place, classes=3)


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_targets_of_arrays_may_be_numbers(tmp_path: Path, form: str) -> None:
    place = arrays(tmp_path, form, x_train=X, y_train=Y + 0.5, x_test=X[:2], y_test=Y[:2] - 7)
    found = data.read(place, numbers=True)
    assert isinstance(found, Dataset)
    assert found.classes is None
    (_, train), (_, test) = found.train.tensors(), found.test.tensors()
    assert train.dtype == test.dtype == torch.float32
    assert train.tolist() == (Y + 0.5).tolist()
    assert test.tolist() == (Y[:2] - 7).tolist()


def test_a_record_may_have_several_numbers_for_targets(tmp_path: Path) -> None:
    found = data.read(arrays(tmp_path, "npz", x=X, y=np.stack([Y, -Y], 1) / 2), numbers=True)
    assert found.train.y.shape == (6, 2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"x": X, "y": np.array(["a"] * 6)}, "targets of type <U1 must be numbers; store float"),
        ({"x": X, "y": Y[:5] / 2}, "must have one row for each record"),
        ({"x": X, "y": np.where(Y[0] == Y, np.nan, Y)}, "record 0 has a target that is not finite"),
        ({"x": X, "y": Y * 1e300}, "has a target that is not finite in float32"),
        (
            {"x_train": X, "y_train": Y / 2, "x_test": X, "y_test": Y[:, None] / 2},
            r"y_test of shape \(6, 1\) must have rows as y_train of shape \(6,\) has",
        ),
    ],
)
def test_numbers_that_are_refused(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.read(arrays(tmp_path, "npz", **parts), numbers=True)


def test_numbers_have_no_classes(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="classes=3: is for labels, and the targets are"):
        data.read(arrays(tmp_path, "npz", x=X, y=Y), classes=3, numbers=True)


def test_classes_are_declared_never_counted(tmp_path: Path) -> None:
    place = arrays(tmp_path, "npz", x=X, y=Y)
    with pytest.raises(ConfigurationError, match="`classes` is required"):
        data.read(place)
    with pytest.raises(ConfigurationError, match="whole number of at least 1"):
        data.read(place, classes=0)


@pytest.mark.parametrize(
    "option", [{"target": "y"}, {"columns": ["x"]}, {"categories": {}}, {"test": "b.npz"}]
)
def test_options_of_tables_are_for_tables(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="is for CSV files"):
        data.read(arrays(tmp_path, "npz", x=X, y=Y), classes=3, **option)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut"])
def test_an_npz_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"must be an \.npz file of plain arrays"):
        data.read(path, classes=3)


def test_one_array_alone_is_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", X)
    path = (tmp_path / "mine.npy").rename(tmp_path / "mine.npz")
    with pytest.raises(DataError, match="it is one array alone"):
        data.read(path, classes=3)


def test_a_place_that_is_not_there() -> None:
    with pytest.raises(DataError, match="there is no such file or folder; give an"):
        data.read("nowhere.npz", classes=2)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"has an unknown format; give an \.npz or \.csv"):
        data.read(tmp_path / "mine.parquet", classes=2)


class Mapped:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[float, int]:
        return float(row), row


FACTORY = """
import numpy as np
from steppe.data import Dataset, MappedDataset, Split
from test_own_data import Mapped, X, Y
from torch.utils.data import Subset
SAME = Mapped()
def pair(): return X, Y
def four(): return X, Y, X[:1].copy(), Y[:1].copy()
def four_again(): return X, Y, X[:1], Y[:1].copy()
def again(): return SAME, SAME
def built(): return Dataset("built", Split(X, Y), Split(X, Y), 3, "", "")
def wrapped(): return MappedDataset("wrapped", SAME, Subset(SAME, [1]), 3)
def mapped(): return Mapped()
def two(): return Mapped(), Mapped()
def wrong(): return 5
def broken(): raise KeyError("path")
"""


def test_a_factory_may_return_arrays_or_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_factory_records.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(data.read("test_factory_records:pair", classes=3).train) == 6
    four = data.read("test_factory_records:four", classes=3)
    assert isinstance(four, Dataset)
    assert len(four.test) == 1
    with pytest.raises(ConfigurationError, match="`classes` is required"):
        data.read("test_factory_records:pair")
    assert data.read("test_factory_records:pair", numbers=True).classes is None

    mapped = data.read("test_factory_records:mapped")
    assert isinstance(mapped, MappedDataset)
    assert mapped.records() == (mapped.train, None)
    assert data.read("test_factory_records:two", classes=3).classes == 3

    for name in ("four_again", "again", "built", "wrapped"):
        with pytest.raises(ConfigurationError, match="returns the private records as test data"):
            data.read(f"test_factory_records:{name}", classes=3)
    with pytest.raises(DataError, match="gave a int, which is no data set"):
        data.read("test_factory_records:wrong", classes=3)
    with pytest.raises(ConfigurationError, match="raised KeyError"):
        data.read("test_factory_records:broken", classes=3)
    with pytest.raises(ConfigurationError, match="has no 'none'"):
        data.read("test_factory_records:none", classes=3)
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        data.read("no_such_module:pair", classes=3)


def test_columns_of_arrays_have_bounds_of_their_own(tmp_path: Path) -> None:
    place = arrays(tmp_path, "npz", x_train=X, y_train=Y, x_test=X[:1] - 99, y_test=Y[:1])
    found = data.read(place, classes=3, bounds=[(0, 10), (1, 11)])
    assert isinstance(found, Dataset)
    np.testing.assert_allclose(found.train.x[:, 0], X[:, 0] / 5 - 1, rtol=1e-6, atol=1e-7)
    assert found.test.x.tolist() == [[-1, -1]]
    same = data.read(place, classes=3, bounds=(0, 11))
    assert isinstance(same, Dataset)
    assert same.bounds == [(0, 11)] * 2
    with pytest.raises(DataError, match="has 2 columns, and there are bounds for 3"):
        data.read(place, classes=3, bounds=[(0, 1)] * 3)


def test_bounds_may_be_read_off_arrays(tmp_path: Path) -> None:
    missing = np.where(X == 7, np.nan, X)
    place = arrays(tmp_path, "npz", x=missing, y=Y)
    found = data.read(place, classes=3, bounds="records", missing="middle")
    assert found.train.x[3, 1] == 0
    assert np.abs(found.train.x).max() < 1
    pictures = arrays(tmp_path, "npy", x=np.arange(24).reshape(6, 2, 2), y=Y)
    bright = data.read(pictures, classes=3, bounds="records")
    assert isinstance(bright, Dataset)
    assert bright.bounds == (0.0, 23.0)
    assert (bright.train.x.min(), bright.train.x.max()) == (0.0, 1.0)


def test_pictures_of_bytes_have_their_bounds(tmp_path: Path) -> None:
    place = arrays(tmp_path, "npz", x=np.zeros((6, 4, 4), np.uint8), y=Y)
    found = data.read(place, classes=3, bounds="records")
    assert isinstance(found, Dataset)
    assert found.bounds is None
    with pytest.raises(ConfigurationError, match="uint8 stands for pictures"):
        data.read(place, classes=3, bounds=(0, 1))


def test_bytes_in_two_dimensions_are_a_table(tmp_path: Path) -> None:
    """Flags of 0 and 1 are often stored as uint8; divided by 255 they would say nothing."""
    place = arrays(tmp_path, "npz", x=np.eye(6, dtype=np.uint8), y=Y)
    assert data.read(place, classes=3).train.x.max() == 1
    found = data.read(place, classes=3, bounds=(0, 1))
    assert (found.train.x.min(), found.train.x.max()) == (-1, 1)


@pytest.mark.parametrize(
    ("column", "inside"),
    [
        (1_700_000_000_000_000_000 + 10**6 * np.arange(6), True),  # nanoseconds, all in one second
        (1_700_000_004 + np.linspace(0, 8, 6), True),
        (np.full(6, 10**18), False),
        (np.full(6, 0.1), False),
        (np.array([1e-30, 2e-30, 3e-30, 4e-30, 5e-30, 6e-30]), True),
        (3e38 * np.linspace(-1, 1, 6), True),
    ],
)
def test_columns_of_any_size_keep_their_differences(
    tmp_path: Path, column: np.ndarray[Any, Any], inside: bool
) -> None:
    place = arrays(tmp_path, "npz", x=column[:, None], y=Y)
    found = data.read(place, classes=3, bounds="records")
    assert isinstance(found, Dataset)
    steps = np.diff(found.train.x[:, 0])
    assert (steps > 0.1).all() if inside else (steps == 0).all()
    assert np.abs(found.train.x).max() < 1
    # Whoever predicts declares what was read.
    again = data.read(place, classes=3, bounds=found.bounds)
    assert np.array_equal(again.train.x, found.train.x)


def test_what_float32_cannot_hold_is_refused(tmp_path: Path) -> None:
    place = arrays(tmp_path, "npz", x=np.where(X == 7, 1e300, X), y=Y)
    with pytest.raises(DataError, match="record 3 has a value that is not finite in float32"):
        data.read(place, classes=3)
    path = tmp_path / "visits.csv"
    path.write_text("age,ill\n1e300,0\n")
    with pytest.raises(DataError, match="line 2, column 'age': must be a finite number"):
        data.read(path, target="ill", classes=2, bounds="records")
    with pytest.raises(DataError, match="must be two finite numbers, ascending"):
        data.read(path, target="ill", classes=2, bounds=(-1.7e308, 1.7e308))


def test_what_was_read_off_the_records_goes_with_them(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("age,sex,ill\n20,f,0\n40,m,1\n")
    options: dict[str, Any] = {"target": "ill", "classes": 2, "categories": {"sex": ["f", "m"]}}
    for bounds, words in (("records", "mean and the standard deviation"), ((0, 120), "")):
        train, _ = data.read(path, **options, bounds=bounds).records()
        plan = Plan(epsilon=8.0, delta=1e-2, population=2, batch_size=1, steps=2)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for records in (train, DataLoader(Subset(train, [1, 0]))):
            private = make_private(model, optimizer, records, plan, loss=F.cross_entropy)
            said = private.statement().also_read
            assert len(said) == bool(words)
            assert words in " ".join(said)
    # Categories are declared: where there is nothing else, nothing is read.
    texts = data.read(path, **options, columns=["sex"], bounds="records")
    assert isinstance(texts, Dataset)
    assert texts.also_read == ()


def test_a_public_name_that_is_almost_right_is_suggested() -> None:
    with pytest.raises(DataError, match="did you mean the public data set 'mnist'"):
        data.read("minst", classes=10)


@pytest.mark.parametrize("option", [{"bounds": (0, 1)}, {"missing": "middle"}])
def test_what_own_code_makes_is_taken_as_it_is(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="scale in your own code"):
        data.read("somewhere:records", classes=2, **option)


def test_pictures_with_their_colours_first_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((4, 3, 32, 32), np.uint8), np.zeros(4, np.int64)
    with pytest.raises(DataError, match="must have their colours on the last axis; transpose"):
        data.read(arrays(tmp_path, "npz", x=x, y=y), classes=2)
    with pytest.raises(DataError, match="must have one row"):
        data.read(arrays(tmp_path, "npz", x=x[:, :0], y=y), classes=2)


@pytest.mark.parametrize("form", [".npy", ".npz"])
def test_broken_files_of_any_kind_are_one_clear_error(tmp_path: Path, form: str) -> None:
    """Bytes of a good file changed in many places: numpy and zlib raise all sorts of errors."""
    good = io.BytesIO()
    x, y = np.arange(60.0).reshape(20, 3), np.zeros(20, np.int64)
    if form == ".npy":
        np.save(good, x)
    else:
        np.savez_compressed(good, x=x, y=y)
    generator = np.random.default_rng(0)
    path = tmp_path / f"broken{form}"
    failed = 0
    for _ in range(300):
        content = bytearray(good.getvalue())
        for place in generator.integers(0, len(content), 3):
            content[place] = generator.integers(256)
        path.write_bytes(content)
        try:
            data.read(path, classes=2) if form == ".npz" else data.read_inputs(path)
        except SteppeError:
            failed += 1
    assert failed > 30
