"""Tables in CSV files: what is read, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe import data
from steppe.data import Dataset
from steppe.errors import ConfigurationError, DataError

TEXT = "age,ill,visits\n20,0,1\n80,1.0,9\n\n50,1,30\n"
BOUNDS = {"age": (0, 100), "visits": (0, 10)}


def table(folder: Path, text: str, name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_the_target_of_a_table_may_be_a_number(tmp_path: Path) -> None:
    place = tmp_path / "prices.csv"
    place.write_text("rooms,price\n2,310.5\n3,-4e2\n")
    found = data.read(place, target="price", numbers=True)
    assert isinstance(found, Dataset)
    assert (found.train.y.tolist(), found.train.y.dtype) == ([310.5, -400.0], np.float32)
    assert found.classes is None
    for cell in ("", "NA", "inf", "much"):
        place.write_text(f"rooms,price\n2,310.5\n3,{cell}\n")
        with pytest.raises(DataError, match="line 3, column 'price': must be a finite number"):
            data.read(place, target="price", numbers=True)


def test_a_table_is_cut_and_scaled_by_declared_bounds(tmp_path: Path) -> None:
    path = table(tmp_path, TEXT)
    found = data.read(path, target="ill", classes=2, bounds=BOUNDS)
    assert isinstance(found, Dataset)
    expected = [[-0.6, -0.8], [0.6, 0.8], [0.0, 1.0]]
    np.testing.assert_allclose(found.train.x, expected, rtol=1e-6, atol=1e-7)
    assert (found.bounds, found.columns) == (BOUNDS, ("age", "visits"))
    assert found.train.y.tolist() == [0, 1, 1]
    plain = data.read(path, target="ill", classes=2, columns=["visits"])
    assert plain.train.x.tolist() == [[1], [9], [30]]


def test_the_test_table_may_have_its_columns_in_another_order(tmp_path: Path) -> None:
    other = table(tmp_path, "visits,age,ill\n1,20,0\n", "test.csv")
    found = data.read(table(tmp_path, TEXT), target="ill", classes=2, test=other)
    assert isinstance(found, Dataset)
    assert found.test.x.tolist() == [[20, 1]]
    with pytest.raises(DataError, match="there is no such file"):
        data.read(tmp_path / "mine.csv", target="ill", classes=2, test="none.csv")
    gaps = table(tmp_path, "visits,age,ill\n,20,0\n", "gaps.csv")
    with pytest.raises(DataError, match=r"^test='.*gaps\.csv': line 2, column 'visits': has no v"):
        data.read(tmp_path / "mine.csv", target="ill", classes=2, test=gaps)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            TEXT,
            {"target": "sick"},
            r"^target='sick': is not a column of .*\(it has age, ill, visits\)",
        ),
        (
            TEXT,
            {"columns": ["agee"]},
            r"^columns='agee': is not a column of .*did you mean 'age'\?",
        ),
        (
            "41,7\n",
            {"target": "41", "columns": ["x"]},
            "^columns='x': is not a column in the first",
        ),
        (TEXT, {"columns": ["ill"]}, "^columns='ill': is the target; leave it out of the columns"),
        (TEXT, {"bounds": {"age": (0, 9)}}, "bounds='visits': must be given for every column"),
        (TEXT, {"bounds": {**BOUNDS, "x": (0, 1)}}, "bounds='x': must be a column that is read"),
        (TEXT, {"bounds": (5, 5)}, "must be two finite numbers, ascending"),
        (TEXT, {"bounds": "record"}, "must be two finite numbers, ascending"),
        (TEXT, {"bounds": {**BOUNDS, "age": 3}}, "the bounds of 'age' must be two finite"),
        (TEXT, {"categories": {"sex": ["m"]}}, "categories='sex': must be a column that is read"),
        ("sex,ill\nx,1\n", {"categories": {"sex": ["f", "m"]}}, "must be one of its categories"),
        ("ill\n1\n", {}, "must have a column beside the label"),
        ("age,ill\n20,3\n", {}, "^place='.*line 2, column 'ill': must be a whole number"),
        ("age,ill\n20,0.5\n", {}, "must be a whole number from 0 to 1"),
        ("age,ill\n20,yes\n", {}, "from 0 to 1; recode the labels, or declare their number or na"),
        ("age,ill\n20,-1\n", {}, "must be a whole number from 0 to 1"),
        ("age,ill\n20,maybe\n", {"classes": ["no", "yes"]}, "declared classes 'no', 'yes'"),
        ("age,ill\nold,1\n", {}, "line 2, column 'age': must be a finite number"),
        ("age,ill\ninf,1\n", {}, "must be a finite number; declare the texts of a column by c"),
        ("age,ill\n,1\n", {}, "line 2, column 'age': has no value; fill it in, or set missing="),
        ("age,ill\nnan,1\n", {}, "has no value"),
        ("age,ill\n1,1,1\n", {}, "line 2 must have 2 columns"),
        ("age,age,ill\n1,1,1\n", {}, "a different name for each column"),
        ("age;ill\n1;1\n", {}, "must have commas between its columns"),
        ("age,ill\n", {}, "at least one record"),
        ("", {}, "^target='ill': is not a column"),
        ("41,7,yes\n20,1,no\n", {}, r"is not a column in the first line of .*; add a header line"),
        (",age,ill\n0,41,1\n", {}, "column 1 has no header"),
    ],
)
def test_tables_that_are_refused(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    chosen = {"target": "ill", "classes": 2, **options}
    with pytest.raises(DataError, match=message):
        data.read(table(tmp_path, text), **chosen)


def test_a_table_needs_its_target_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="`target` is required"):
        data.read(table(tmp_path, TEXT), classes=2)


def test_a_message_shows_no_value_of_a_record(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        data.read(table(tmp_path, "age,ill\nsecret,1\n"), target="ill", classes=2)
    assert "secret" not in str(caught.value)


def test_other_encodings_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes("größe,ill\n1,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="must be text in UTF-8"):
        data.read(path, target="ill", classes=2)


def test_bounds_may_be_read_off_a_table(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b,label\n1,5,0\n-3,5,1\n")
    found = data.read(path, target="label", classes=2, bounds="records")
    assert isinstance(found, Dataset)
    assert found.bounds == {"a": (-7.0, 5.0), "b": (4.0, 6.0)}  # mean ± 3 deviations; a constant
    np.testing.assert_allclose(found.train.x, [[1 / 3, 0], [-1 / 3, 0]], rtol=1e-6)
    again = data.read(path, target="label", classes=2, bounds=found.bounds)
    assert np.array_equal(again.train.x, found.train.x)


def test_text_becomes_its_declared_categories(tmp_path: Path) -> None:
    path = table(tmp_path, "age,sex,ill\n50,m,no\n100, f,yes\n,NA,yes\n")
    options: dict[str, Any] = {
        "target": "ill",
        "classes": ["no", "yes"],
        "bounds": {"age": (0, 100)},
        "categories": {"sex": ["f", "m"]},
    }
    with pytest.raises(DataError, match="line 4, column 'age': has no value"):
        data.read(path, **options)
    found = data.read(path, missing="middle", **options)
    assert found.train.x.tolist() == [[0, 0, 1], [1, 1, 0], [0, 0, 0]]
    with pytest.raises(ConfigurationError, match="missing='middle': needs bounds"):
        data.read(path, missing="middle", **{**options, "bounds": None})
    with pytest.raises(ConfigurationError, match="list of different texts"):
        data.read(path, **{**options, "categories": {"sex": "f"}})
    spaced = {"classes": ["no ", " yes"], "categories": {"sex": [" f", "m"]}}
    assert np.array_equal(
        data.read(path, missing="middle", **{**options, **spaced}).train.x, found.train.x
    )
    for wrong, message in (
        ({"categories": {"sex": [1, 2]}}, "of 'sex' must be a list of different texts"),
        ({"categories": {"sex": ["f", "f "]}}, "of 'sex' must be a list of different texts"),
        ({"categories": "sex"}, "categories='sex': must name columns"),
        ({"classes": [0, 1]}, "classes=.*: must be a number, or a list of different names"),
        ({"columns": "age"}, "columns='age': must be a list of names"),
        ({"columns": ["age", "age"]}, "must be different; name"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            data.read(path, **{**options, "missing": "middle", **wrong})
    with pytest.raises(ConfigurationError, match='missing=0: must be "middle"'):
        data.read(path, **{**options, "missing": 0})


def test_records_without_labels_are_read_on_the_same_scale(tmp_path: Path) -> None:
    path = table(tmp_path, "visits,age\n1,20\n")
    inputs = data.read_inputs(path, columns=["age", "visits"], bounds=BOUNDS)
    np.testing.assert_allclose(inputs, [[-0.6, -0.8]], rtol=1e-6)
    np.save(tmp_path / "new.npy", [[20.0, 1.0]])
    inputs = data.read_inputs(tmp_path / "new.npy", bounds=[(0, 100), (0, 10)])
    np.testing.assert_allclose(inputs, [[-0.6, -0.8]], rtol=1e-6)
    np.save(tmp_path / "flat.npy", [20.0, 1.0])
    with pytest.raises(DataError, match=r"shape \(2,\) must be numbers, a row a record"):
        data.read_inputs(tmp_path / "flat.npy")
    with pytest.raises(DataError, match="there is no such file"):
        data.read_inputs(tmp_path / "none.npy")


def test_a_quote_that_is_never_closed_swallows_nothing(tmp_path: Path) -> None:
    path = table(tmp_path, 'a,y,note\n1,0,"x\n2,1,y\n3,0,z\n')
    with pytest.raises(DataError, match=r"must be a CSV file \(unexpected end of data\)"):
        data.read(path, target="y", classes=2, columns=["a"])


def test_the_test_file_is_another_one(tmp_path: Path) -> None:
    path = table(tmp_path, "a,y\n1,0\n2,1\n")
    (tmp_path / "linked.csv").symlink_to(path)
    for same in (path, tmp_path / "linked.csv"):
        with pytest.raises(ConfigurationError, match="is the private training data"):
            data.read(path, target="y", classes=2, test=same)


@pytest.mark.parametrize("option", [{"target": 1}, {"target": "y", "columns": [1]}])
def test_columns_have_names(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"must (name|be a list of names)"):
        data.read(table(tmp_path, "a,y\n1,0\n"), classes=2, **option)


def test_a_first_line_without_names_is_not_shown(tmp_path: Path) -> None:
    for second in ("bert,well,no", "bert,,no", "bert,nan,no"):
        path = table(tmp_path, f"anna,ill,yes\n{second}\n")
        with pytest.raises(DataError, match="add a header line, or correct the name") as caught:
            data.read(path, target="label", classes=2)
        assert "anna" not in str(caught.value)
