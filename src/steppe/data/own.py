"""Users' own data: arrays in files, tables, and anything that their own code makes."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe import _validate
from steppe._user_code import made_by
from steppe.data.dataset import Dataset, MappedDataset, Split
from steppe.data.table import Bounds, read_table
from steppe.errors import DataError

_NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(
    place: str | Path,
    *,
    classes: int | Sequence[str] | None = None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    test: str | Path | None = None,
) -> Dataset | MappedDataset:
    """Your own data.

    Args:
        place: one of
            an `.npz` file, or a folder of `.npy` files, with `x_train`, `y_train` and, if there is
            a test part, `x_test`, `y_test` (or `x` and `y`): a record a row, uint8 for pictures
            (records, height, width[, colour]), any other numbers for tables;
            a `.csv` file with a header line, a column of labels and numeric columns;
            `module:factory`, a function without arguments that returns a `Dataset`, a tuple of
            arrays (x, y) or (x_train, y_train, x_test, y_test), or map-style data sets: one, or
            a tuple of two (train, test).
        classes: how many labels there are, or for a CSV file their names in order. It is declared,
            never counted in the data; only map-style data sets may go without.
        target: the column of labels of a CSV file.
        columns: the numeric columns of a CSV file to use; None for all but the target.
        bounds: for a CSV file the lowest and highest value a column can have, one pair for all or
            one for each. Values are cut to them and scaled to [0, 1]. None takes values as they
            are. Declare them from what you know of the column: bounds read off the records would
            tell about the records.
        test: another CSV file, for evaluation.

    Returns:
        The data set. Without a test part, `test` has no records.

    Guarantees:
        Labels are checked against the declared classes here, before any training, on the side of
        the data's owner. Nothing is unpickled. Messages show no value of a record.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "visits.csv"
        ...     _ = path.write_text("age,visits,ill\\n20,1,no\\n80,9,yes\\n")
        ...     bounds = {"age": (0, 100), "visits": (0, 10)}
        ...     data = read(path, target="ill", classes=("no", "yes"), bounds=bounds)
        >>> data.train.x.tolist(), data.train.y.tolist()
        ([[0.2..., 0.1...], [0.8..., 0.8...]], [0, 1])
    """
    text = str(place)
    path = Path(place).expanduser()
    if isinstance(place, str) and ":" in place and not path.exists():
        return _made(place, classes)
    if not path.exists():
        raise DataError(
            f"place={text!r}: there is no such file or folder; give an .npz or .csv file, a folder "
            "of .npy files, or module:factory."
        )
    if path.suffix.lower() == ".csv":
        return _table(path, classes, target, columns, bounds, test)
    for name, value in (("target", target), ("columns", columns), ("bounds", bounds)):
        if value is not None:
            raise _validate.fail(name, value, "is for CSV files", "leave it out")
    if test is not None:
        raise _validate.fail(
            "test",
            str(test),
            "is for CSV files",
            "put x_test and y_test beside x_train and y_train",
        )
    found = _folder(path) if path.is_dir() else _npz(path)
    return _dataset(text, found, _count(classes))


def _table(
    path: Path,
    classes: int | Sequence[str] | None,
    target: str | None,
    columns: Sequence[str] | None,
    bounds: Bounds | Mapping[str, Bounds] | None,
    test: str | Path | None,
) -> Dataset:
    count = _count(classes)
    known = count if isinstance(classes, int) or classes is None else classes
    if target is None:
        raise _validate.fail("target", None, "must name the column of labels", "add target=")
    train = read_table(path, target, known, columns, bounds)
    other = Split(train.x[:0], train.y[:0])
    if test is not None:
        # The same columns in the same order, whatever order the test file has them in.
        chosen = columns if columns is not None else _header(path, target)
        other = read_table(_existing(test), target, known, chosen, bounds)
    return _built(str(path), train, other, count)


def _header(path: Path, target: str) -> list[str]:
    import csv

    with path.open(newline="", encoding="utf-8-sig") as file:
        return [name.strip() for name in next(csv.reader(file)) if name.strip() != target]


def _existing(place: str | Path) -> Path:
    path = Path(place).expanduser()
    if not path.is_file():
        raise DataError(f"test={str(place)!r}: there is no such file; give a .csv file.")
    return path


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is one array alone")
            return {name: file[name] for name in _wanted(str(path), list(file.files))}
    except DataError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as reason:
        raise DataError(
            f"place={str(path)!r}: must be an .npz file of plain arrays ({reason}); save it with "
            "numpy.savez(file, x_train=..., y_train=...)."
        ) from None


def _folder(path: Path) -> dict[str, NDArray[Any]]:
    present = sorted(file.stem for file in path.glob("*.npy"))
    arrays = {}
    for name in _wanted(str(path), present):
        try:
            arrays[name] = np.load(path / f"{name}.npy", allow_pickle=False)
        except (ValueError, EOFError, OSError) as reason:
            raise DataError(
                f"place={str(path / name)!r}: must be a plain array ({reason}); save it with "
                "numpy.save."
            ) from None
    return arrays


def _wanted(place: str, present: list[str]) -> list[str]:
    names = [name for name in _NAMES if name in present] or [n for n in ("x", "y") if n in present]
    if len(names) not in (2, 4) or names[0] == "x_test":
        listed = ", ".join(present) or "nothing"
        raise DataError(
            f"place={place!r}: must hold x_train and y_train, and x_test with y_test or neither, "
            f"but holds {listed}; rename the arrays."
        )
    return names


def _made(place: str, classes: int | Sequence[str] | None) -> Dataset | MappedDataset:
    made = made_by(place, "place")
    if isinstance(made, (Dataset, MappedDataset)):
        return made
    parts = made if isinstance(made, tuple) else (made,)
    if len(parts) in (2, 4) and all(_is_array(part) for part in parts):
        arrays = dict(zip(_NAMES, map(np.asarray, parts), strict=False))
        return _dataset(place, arrays, _count(classes))
    if len(parts) in (1, 2) and all(
        hasattr(part, "__len__") and hasattr(part, "__getitem__") for part in parts
    ):
        count = None if classes is None else _count(classes)
        return MappedDataset(place, parts[0], parts[1] if len(parts) == 2 else None, count)
    raise DataError(
        f"place={place!r}: gave a {type(made).__name__}, which is no data set; return (x, y), "
        "(x_train, y_train, x_test, y_test), or data sets with __len__ and __getitem__."
    )


def _is_array(part: Any) -> bool:
    # Tensors and arrays of other libraries count; a data set has records, no shape.
    return hasattr(part, "__array__") and hasattr(part, "shape")


def _count(classes: int | Sequence[str] | None) -> int:
    if classes is None:
        raise _validate.fail(
            "classes", None, "must be declared", "give the number of labels there can be"
        )
    if isinstance(classes, Sequence):
        if isinstance(classes, str) or len(set(classes)) != len(classes):
            raise _validate.fail("classes", classes, "must be different names", "give a list")
        return _validate.positive_integer("classes", len(classes), "name at least one class")
    return _validate.positive_integer("classes", classes)


def _dataset(place: str, arrays: dict[str, NDArray[Any]], classes: int) -> Dataset:
    values = list(arrays.values())
    train = _split(place, values[0], values[1], classes)
    if len(values) == 2:
        return _built(place, train, Split(train.x[:0], train.y[:0]), classes)
    test = _split(place, values[2], values[3], classes)
    if test.x.shape[1:] != train.x.shape[1:] or test.x.dtype != train.x.dtype:
        raise DataError(
            f"place={place!r}: test records of {test.x.dtype} {test.x.shape[1:]} must be like "
            f"training records of {train.x.dtype} {train.x.shape[1:]}; store both in the same way."
        )
    return _built(place, train, test, classes)


def _split(place: str, x: NDArray[Any], y: NDArray[Any], classes: int) -> Split:
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(x) == 0:
        raise DataError(
            f"place={place!r}: x of shape {x.shape} and y of shape {y.shape} must have one row "
            "for each record and one label; reshape them to (records, ...) and (records,)."
        )
    if not (np.issubdtype(x.dtype, np.floating) or x.dtype.kind in "biu"):
        raise DataError(f"place={place!r}: x of type {x.dtype} must be numbers; encode it.")
    if y.dtype.kind not in "biu":
        raise DataError(
            f"place={place!r}: labels of type {y.dtype} must be whole numbers; recode them as "
            f"0 to {classes - 1}."
        )
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(
            f"place={place!r}: labels must lie from 0 to {classes - 1}; recode them, or declare "
            "the right number of classes."
        )
    inputs = x if x.dtype == np.uint8 else x.astype(np.float32)
    return Split(inputs, y.astype(np.int64))


def _built(place: str, train: Split, test: Split, classes: int) -> Dataset:
    # No fingerprint: a hash of private records is a function of them, and it would be published.
    return Dataset(place, train, test, classes, place, sha256="")
