"""Users' own data: arrays in files, tables, and data made by their own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.data.arrays import NAMES, arranged, read_array, read_arrays, scale
from steppe.data.catalogue import nearest
from steppe.data.dataset import Dataset, MappedDataset, Split
from steppe.data.encoding import MIDDLE, Encoding, different_texts
from steppe.data.holdout import share_of, split_arrays
from steppe.data.scaling import Bounds, from_records, pair, read_off
from steppe.data.table import Targets, column_names, read_table
from steppe.errors import DataError
from steppe.records import share_records
from steppe.utils import validation
from steppe.utils.user_code import made_by

_NAMES = "must be a number, or a list of different names"
_KINDS = "give an .npz or .csv file, a folder of .npy files, or module:factory"


def read(
    place: str | Path,
    *,
    classes: int | Sequence[str] | None = None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    bounds: Bounds | Sequence[Bounds] | Mapping[str, Bounds] | str | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: str | None = None,
    test: str | Path | None = None,
    numbers: bool = False,
    target_bounds: Bounds | None = None,
    holdout: float | None = None,
) -> Dataset | MappedDataset:
    """Your own data.

    Args:
        place: one of
            an `.npz` file, or a folder of `.npy` files, with `x_train`, `y_train` and, if there is
            a test part, `x_test`, `y_test` (or `x` and `y`): a record a row, uint8 for pictures
            (records, height, width[, colour]), any numbers for tables and the rest;
            a `.csv` file with a header line, a column of labels, and columns of numbers or text;
            `module:factory`, a function without arguments that returns a `Dataset`, a tuple of
            arrays (x, y) or (x_train, y_train, x_test, y_test), or map-style data sets: one, or
            a tuple of two (train, test). It is not scaled.
        classes: how many labels there are, or for a CSV file their names in order. It is declared,
            never counted in the data; only map-style data sets may go without.
        target: the column of labels of a CSV file.
        columns: the columns of a CSV file to use; None for all but the target.
        bounds: of files, the lowest and highest value that a column can have: one pair for all, or
            one for each by name (arrays: by place). Values are clamped to them and scaled to
            [−1, 1]. Arrays of more than two dimensions have one pair for all and become [0, 1].
            None leaves values unscaled. Declare bounds from general knowledge; "records" reads them
            from the records instead (the mean ± 3 standard deviations; for other arrays the
            smallest and largest value), and those numbers reveal something about the records.
        categories: by column of a CSV file, the texts that it can hold; each becomes an input of
            0 or 1.
        missing: "middle" lets values be missing: an empty cell, NA or NaN counts as the middle of
            the bounds, and in a column of text as none of the categories. None refuses them.
        test: another CSV file, for evaluation.
        numbers: whether the targets are real numbers, as for a regression, and there are no
            classes. Arrays may then have several for each record.
        target_bounds: of numbers in files, the lowest and highest that a target can have. Targets
            are scaled so that these become −1 and 1; those to train on are clamped. Declare them
            from general knowledge. None leaves targets as they are.
        holdout: the share of a file's records to keep out of training, as its test part. A hash of
            the record decides, so that every run on these records keeps the same ones out.

    Returns:
        The data set, with the bounds and columns that were used and what was read to find them.
        Without a test part, `test` has no records.

    Guarantees:
        Labels are checked against the declared classes here, before any training, on the side of
        the data's owner. Nothing is unpickled. Messages show no value of a record.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "visits.csv"
        ...     _ = path.write_text("age,visits,ill\\n25,10,no\\n75,,yes\\n")
        ...     bounds = {"age": (0, 100), "visits": (0, 10)}
        ...     names = ("no", "yes")
        ...     data = read(path, target="ill", classes=names, bounds=bounds, missing="middle")
        >>> data.train.x.tolist(), data.train.y.tolist()
        ([[-0.5, 1.0], [0.5, 0.0]], [0, 1])
    """
    text = str(place)
    path = Path(place).expanduser()
    scaling = {"bounds": bounds, "missing": missing}
    share = share_of(holdout)
    if target_bounds is not None:
        if not numbers:
            rule, remedy = "is for numbers, and the targets are labels", "leave it out"
            raise validation.fail("target_bounds", target_bounds, rule, remedy)
        with validation.called({"bounds": "target_bounds"}):
            target_bounds = pair("the targets", target_bounds)
    if numbers:
        rule = "is for labels, and the targets are numbers"
        _refuse({"classes": classes}, rule, "leave out one of the two")
    for_tables = {"target": target, "columns": columns, "categories": categories, "test": test}
    if isinstance(place, str) and ":" in place and not path.exists():
        _refuse(scaling, "is for files", "scale in your own code, and leave it out")
        _refuse(for_tables, "is for CSV files", "leave it out")
        remedy = "scale in your own code, and leave it out"
        _refuse({"target_bounds": target_bounds}, "is for files", remedy)
        _refuse({"holdout": holdout}, "is for files", "return a test part from your own code")
        return _made(place, classes, numbers)
    if not path.exists():
        raise _absent(text)
    if path.suffix.lower() == ".csv":
        encoding = _encoding(columns, bounds, categories, missing)
        if test is not None:
            remedy = "give one of the two"
            _refuse({"holdout": holdout}, "cannot be given beside a test file", remedy)
        return _table(path, classes, numbers, target, encoding, test, target_bounds, share)
    if path.is_file() and path.suffix.lower() != ".npz":
        raise DataError.about("place", text, "has an unknown format", _KINDS)
    _refuse(for_tables, "is for CSV files", "leave it out; arrays have x_test and y_test")
    count = _count(classes, numbers)
    arrays = read_arrays(path)
    if share is not None:
        arrays = split_arrays(text, arrays, share)
    return _dataset(text, arrays, count, bounds, _fills_missing(missing), target_bounds, share)


def read_inputs(
    place: str | Path,
    *,
    columns: Sequence[str] | None = None,
    bounds: Bounds | Sequence[Bounds] | Mapping[str, Bounds] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: str | None = None,
) -> NDArray[Any]:
    """Records without labels, scaled like those that a model was trained on.

    Args:
        place: an `.npy` file with one array, or a CSV file.
        columns, bounds, categories, missing: as `read` had them; bounds as it used them.

    Returns:
        Inputs as in `Split.x`.
    """
    path = Path(place).expanduser()
    if not path.is_file():
        raise _absent(str(place))
    if path.suffix.lower() == ".csv":
        encoding = _encoding(columns, bounds, categories, missing)
        with validation.called({"path": "place"}):
            return read_table(path, None, 1, encoding).x
    return scale(str(place), read_array(path), bounds, _fills_missing(missing))[0]


def has_column(place: str | Path, name: str) -> bool:
    """Whether there is a CSV file with this column."""
    path = Path(place).expanduser()
    return path.is_file() and name in column_names(path)


def _encoding(
    columns: Any,
    bounds: Any,
    categories: Mapping[str, Sequence[str]] | None,
    missing: str | None,
) -> Encoding:
    listed = isinstance(columns, Sequence) and not isinstance(columns, str)
    if columns is not None and not (listed and all(isinstance(name, str) for name in columns)):
        raise validation.fail("columns", columns, "must be a list of names", "write [name]")
    return Encoding(None if columns is None else tuple(columns), bounds, categories, missing)


def _table(
    path: Path,
    classes: int | Sequence[str] | None,
    numbers: bool,
    target: str | None,
    encoding: Encoding,
    test: str | Path | None,
    target_bounds: Bounds | None,
    share: float | None,
) -> Dataset:
    count = _count(classes, numbers)
    known = different_texts("classes", classes, _NAMES) if _are_names(classes) else count
    if target is None:
        raise validation.missing("target", "name the column of labels")
    if not isinstance(target, str):
        raise validation.fail("target", target, "must name the column of labels")
    with validation.called({"path": "place"}):
        x, y, settled, held = read_table(path, target, known, encoding, share)
    targets = _targets(y)
    train, other = Split(x[~held], targets[~held]), Split(x[held], targets[held])
    if test is not None:
        # The same columns in the same order, whatever order the test file has them in.
        with validation.called({"path": "test"}):
            x, y, *_ = read_table(_other(test, path), target, known, settled)
        other = Split(x, _targets(y))
    columns = tuple(settled.columns or ())
    found = _built(str(path), train, other, count, encoding.bounds, settled.bounds, columns)
    return found.completed(target_bounds, share)


def _targets(y: Targets | None) -> Targets:
    return np.zeros(0, np.int64) if y is None else y


def _other(place: str | Path, train: Path) -> Path:
    path = Path(place).expanduser()
    if not path.is_file():
        raise DataError.about("test", place, "there is no such file", "give a .csv file")
    if path.samefile(train):
        rule = "is the private training data, on which scores must not be shown"
        raise validation.fail("test", place, rule, "use other records")
    return path


def _absent(place: str) -> DataError:
    remedy = _KINDS
    meant = nearest(Path(place).name)
    if meant is not None:
        remedy = f"did you mean the public data set {meant!r}? If not, {remedy}"
    return DataError.about("place", place, "there is no such file or folder", remedy)


def _refuse(options: Mapping[str, Any], rule: str, remedy: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise validation.fail(name, value, rule, remedy)


def _fills_missing(missing: str | None) -> bool:
    if missing is not None:
        validation.one_of("missing", missing, (MIDDLE,))
    return missing is not None


def _made(
    place: str, classes: int | Sequence[str] | None, numbers: bool
) -> Dataset | MappedDataset:
    made = made_by(place, "place")
    if isinstance(made, Dataset):
        _require_apart(place, (made.train.x, made.train.y), (made.test.x, made.test.y))
        return made
    if isinstance(made, MappedDataset):
        _require_apart(place, made.train, made.test)
        return made
    parts = made if isinstance(made, tuple) else (made,)
    if len(parts) in (2, 4) and all(_is_array(part) for part in parts):
        arrays = dict(zip(NAMES, map(np.asarray, parts), strict=False))
        _require_apart(place, *(tuple(arrays.values())[start : start + 2] for start in (0, 2)))
        return _dataset(place, arrays, _count(classes, numbers), None, missing=False)
    if len(parts) in (1, 2) and all(
        hasattr(part, "__len__") and hasattr(part, "__getitem__") for part in parts
    ):
        count = None if classes is None else _count(classes, numbers)
        test = parts[1] if len(parts) == 2 else None
        _require_apart(place, parts[0], test)
        return MappedDataset(place, parts[0], test, count)
    raise DataError.about(
        "place",
        place,
        f"gave a {type(made).__name__}, which is no data set",
        (
            "return (x, y), (x_train, y_train, x_test, y_test), or data sets with "
            "__len__ and __getitem__"
        ),
    )


def _require_apart(place: str, train: Any, test: Any) -> None:
    if share_records(train, test):
        rule = "returns the private records as test data, on which scores must not be shown"
        raise validation.fail("place", place, rule, "use other records")


def _is_array(part: Any) -> bool:
    # Tensors and arrays of other libraries count; a data set has records, no shape.
    return hasattr(part, "__array__") and hasattr(part, "shape")


def _count(classes: int | Sequence[str] | None, numbers: bool) -> int | None:
    """How many labels there are; None where the targets are numbers."""
    if numbers:
        return None
    if classes is None:
        raise validation.missing(
            "classes",
            "give the number of labels, or their names; for a regression give numbers=True",
            mentions=("numbers=True",),
        )
    if _are_names(classes):
        return len(different_texts("classes", classes, _NAMES))
    return validation.positive_integer("classes", classes)


def _are_names(classes: Any) -> bool:
    return isinstance(classes, Sequence)


def _dataset(
    place: str,
    arrays: dict[str, NDArray[Any]],
    classes: int | None,
    bounds: Any,
    missing: bool,
    target_bounds: Bounds | None = None,
    share: float | None = None,
) -> Dataset:
    train, test, settled = arranged(place, arrays, classes, bounds, missing)
    found = _built(place, train, test, classes, bounds, settled)
    return found.completed(target_bounds, share)


def _built(
    place: str,
    train: Split,
    test: Split,
    classes: int | None,
    asked: Any,
    bounds: Any,
    columns: tuple[str, ...] = (),
) -> Dataset:
    # No fingerprint, because a hash of private records would be published.
    also_read = read_off(bounds) if from_records(asked) else ()
    return Dataset(place, train, test, classes, place, "", bounds, columns, also_read)
