"""Arrays of numpy in files: records in rows, labels beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steppe.data.dataset import Split
from steppe.data.scaling import (
    LARGEST,
    Bounds,
    column_bounds,
    common_bounds,
    from_records,
    no_middle,
    pair,
    scaled_columns,
    scaled_values,
)
from steppe.errors import DataError
from steppe.utils import validation

# No more channels than this are taken for colours: red, green, blue and how opaque.
_COLOURS = 4
NAMES = ("x_train", "y_train", "x_test", "y_test")


class Arrays(NamedTuple):
    """Both parts of a data set.

    Args:
        train: the records to train on.
        test: the records to evaluate on, or none.
        bounds: used to clamp and scale inputs; None for pictures of uint8 and if inputs were not
            scaled.
    """

    train: Split
    test: Split
    bounds: Bounds | list[Bounds] | None


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` file, or of a folder of `.npy` files; nothing is unpickled."""
    return _folder(path) if path.is_dir() else _npz(path)


def read_array(path: Path) -> NDArray[Any]:
    """The one array of an `.npy` file."""
    try:
        found = np.load(path, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it is an archive of several")
        return found
    except Exception as reason:  # on a broken file, numpy and zipfile raise all sorts of errors
        raise DataError.about(
            "place",
            path,
            f"must be one plain array ({_numpy_reason(reason)})",
            "save it with numpy.save",
        ) from None


def arranged(
    place: str, arrays: dict[str, NDArray[Any]], classes: int | None, bounds: Any, missing: bool
) -> Arrays:
    """Check the arrays of both parts and scale them.

    Args:
        place: of the data, for messages.
        arrays: inputs and targets to train on and, where there are any, to test on, in this order.
        classes: how many labels there are; None where the targets are numbers.
        bounds: as for `scale`.
        missing: whether NaN means a missing value.
    """
    x, y, *rest = arrays.values()
    targets = _targets(place, x, y, classes)
    inputs, settled = scale(place, x, bounds, missing)
    train = Split(inputs, targets)
    if not rest:
        return Arrays(train, Split(train.x[:0], train.y[:0]), settled)
    x_test, y_test = rest
    test_targets = _targets(place, x_test, y_test, classes)
    if targets.shape[1:] != test_targets.shape[1:]:
        rule = f"y_test of shape {y_test.shape} must have rows as y_train of shape {y.shape} has"
        raise DataError.about("place", place, rule, "reshape one of them")
    if x_test.shape[1:] != x.shape[1:] or (x_test.dtype == np.uint8) != (x.dtype == np.uint8):
        raise DataError.about(
            "place",
            place,
            (
                f"test records of {x_test.dtype} {x_test.shape[1:]} must be like training "
                f"records of {x.dtype} {x.shape[1:]}"
            ),
            "store both in the same way",
        )
    test = Split(scale(place, x_test, settled, missing)[0], test_targets)
    return Arrays(train, test, settled)


def scale(
    place: str, x: NDArray[Any], bounds: Any, missing: bool
) -> tuple[NDArray[Any], Bounds | list[Bounds] | None]:
    """Inputs on one scale.

    Args:
        place: of the data, for messages.
        x: a record a row. Pictures of uint8, of three dimensions or more, stay as they are:
            `Split.tensors` divides by 255.
        bounds: a pair for all values; for a table of two dimensions also a list with a pair for
            each column; "records" to read them off the records; None to take values as they are.
        missing: whether NaN means a missing value, which becomes the middle of the bounds.

    Returns:
        The inputs and the bounds that were used: of a table's columns in [−1, 1], of other arrays
        in [0, 1].
    """
    if x.ndim < 2 or not (np.issubdtype(x.dtype, np.floating) or x.dtype.kind in "biu"):
        rule = f"x of type {x.dtype} and shape {x.shape} must be numbers, a row a record"
        raise DataError.about("place", place, rule, "encode and reshape it")
    if x.dtype == np.uint8 and x.ndim > 2:
        if not (bounds is None or from_records(bounds)):
            rule = "uint8 stands for pictures, whose bounds are 0 and 255"
            raise validation.fail("bounds", bounds, rule, "leave it out, or store other numbers")
        if x.ndim == 4 and x.shape[1] <= _COLOURS < x.shape[3]:
            rule = f"pictures of shape {x.shape[1:]} must have their colours on the last axis"
            raise DataError.about("place", place, rule, "transpose them")
        return x, None
    # float32 has no room for large whole numbers, such as times, before they are scaled.
    exact = x.dtype == np.float64 or (x.dtype.kind in "iu" and x.dtype.itemsize > 2)
    values: NDArray[np.floating[Any]] = x.astype(np.float64 if exact else np.float32, copy=False)
    _require_finite(place, values, missing)
    if bounds is None:
        if missing:
            raise no_middle()
        return values.astype(np.float32), None
    if values.ndim > 2:
        common = common_bounds(values) if from_records(bounds) else pair("all values", bounds)
        return scaled_values(values, common).astype(np.float32), common
    columns = column_bounds(values) if from_records(bounds) else _declared(place, values, bounds)
    return scaled_columns(values, columns).astype(np.float32), columns


def _declared(place: str, values: NDArray[Any], bounds: Any) -> list[Bounds]:
    count = values.shape[1]
    if not (isinstance(bounds, list | tuple) and bounds and isinstance(bounds[0], list | tuple)):
        return [pair("all columns", bounds)] * count
    if len(bounds) != count:
        rule = f"has {count} columns, and there are bounds for {len(bounds)}"
        raise DataError.about("place", place, rule, "give as many of one as of the other")
    return [pair(f"column {number}", one) for number, one in enumerate(bounds)]


def _require_finite(place: str, values: NDArray[Any], missing: bool) -> None:
    bad = np.abs(values) > LARGEST
    if not missing:
        bad |= np.isnan(values)
    if bad.any():
        record = int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))
        raise DataError.about(
            "place",
            place,
            f"record {record} has a value that is not finite in float32",
            'fill in what is missing, or set missing="middle"',
            mentions=('missing="middle"',),
        )


def _targets(
    place: str, x: NDArray[Any], y: NDArray[Any], classes: int | None
) -> NDArray[np.int64] | NDArray[np.float32]:
    """Labels of the declared classes, or numbers if there are no classes."""
    whole = y.ndim == 1 or (classes is None and y.ndim > 1 and y.size > 0)
    if x.ndim < 2 or not whole or len(x) != len(y) or x.size == 0:
        one = "target" if classes is None else "label"
        raise DataError.about(
            "place",
            place,
            (
                f"x of shape {x.shape} and y of shape {y.shape} must have one row for each "
                f"record and one {one}"
            ),
            "reshape them to (records, ...) and (records,)",
        )
    return _numbers(place, y) if classes is None else _labels(place, y, classes)


def _numbers(place: str, y: NDArray[Any]) -> NDArray[np.float32]:
    if y.dtype.kind not in "biuf":
        rule = f"targets of type {y.dtype} must be numbers"
        raise DataError.about("place", place, rule, "store floating-point numbers")
    bad = ~(np.abs(y.astype(np.float64)) <= LARGEST)  # NaN compares as false
    if bad.any():
        record = int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))
        rule = f"record {record} has a target that is not finite in float32"
        raise DataError.about("place", place, rule, "leave out records without a target")
    return y.astype(np.float32)


def _labels(place: str, y: NDArray[Any], classes: int) -> NDArray[np.int64]:
    if y.dtype.kind not in "biu":
        raise DataError.about(
            "place",
            place,
            f"labels of type {y.dtype} must be whole numbers",
            f"recode them as 0 to {classes - 1}",
        )
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError.about(
            "place",
            place,
            f"labels must lie from 0 to {classes - 1}",
            "recode them, or declare the right number of classes",
        )
    return y.astype(np.int64)


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is one array alone")
            return {name: file[name] for name in _array_names(str(path), list(file.files))}
    except DataError:
        raise
    except Exception as reason:  # as in `read_array`
        raise DataError.about(
            "place",
            path,
            f"must be an .npz file of plain arrays ({_numpy_reason(reason)})",
            "save it with numpy.savez(file, x_train=..., y_train=...)",
        ) from None


def _folder(path: Path) -> dict[str, NDArray[Any]]:
    present = sorted(file.stem for file in path.glob("*.npy"))
    if not present:
        raise DataError.about(
            "place",
            path,
            "is a folder without .npy files",
            (
                "name an .npz file itself, save x_train.npy and y_train.npy, or read other "
                "files, such as pictures, by module:factory"
            ),
        )
    return {name: read_array(path / f"{name}.npy") for name in _array_names(str(path), present)}


def _array_names(place: str, present: list[str]) -> list[str]:
    names = [name for name in NAMES if name in present] or [n for n in ("x", "y") if n in present]
    if len(names) not in (2, 4) or names[0] == "x_test":
        listed = ", ".join(present) or "nothing"
        raise DataError.about(
            "place",
            place,
            (
                "must hold x_train and y_train, and x_test with y_test or neither, but holds "
                f"{listed}"
            ),
            "rename the arrays",
        )
    return names


def _numpy_reason(reason: Exception) -> str:
    """numpy's reason, without its advice to allow pickles."""
    text = str(reason)
    return "it holds objects, or is no file of numpy" if "pickle" in text else text
