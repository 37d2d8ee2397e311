"""A table in a CSV file: a column of labels, the rest numbers."""

from __future__ import annotations

import csv
import difflib
import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steppe.data.dataset import Split
from steppe.errors import DataError

Bounds = tuple[float, float]


def read_table(
    path: Path,
    target: str,
    classes: int | Sequence[str],
    columns: Sequence[str] | None,
    bounds: Bounds | Mapping[str, Bounds] | None,
) -> Split:
    """Read a CSV file with a header line; see `steppe.data.read` for the arguments.

    Guarantees:
        A record is read by itself. Messages name lines and columns and show no value of a record.
    """
    x, labels, chosen = _read(path, target, classes, columns)
    return Split(_scaled(x, chosen, bounds), labels)


def column_ranges(
    path: Path,
    target: str,
    classes: int | Sequence[str],
    columns: Sequence[str] | None = None,
) -> dict[str, Bounds]:
    """The smallest and largest value of every column, for who has no bounds to declare.

    Args:
        path, target, classes, columns: as for `steppe.data.read`.

    Returns:
        Bounds by column; a column with one value gets a range above it.

    Guarantees:
        None: these numbers are read off the records, and whoever publishes them, or weights trained
        on what they scale, should say so. `steppe train` does, in the privacy statement.
    """
    x, _, chosen = _read(path, target, classes, columns)
    lows, highs = x.min(axis=0).tolist(), x.max(axis=0).tolist()
    return {
        name: (low, high if high > low else low + 1.0)
        for name, low, high in zip(chosen, lows, highs, strict=True)
    }


def _read(
    path: Path, target: str, classes: int | Sequence[str], columns: Sequence[str] | None
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    """Values, labels and the names of the columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = [name.strip() for name in next(lines, [])]
            chosen = _columns(path, header, target, columns)
            at = header.index(target)
            places = [header.index(name) for name in chosen]
            values, labels = array("d"), array("q")
            for row in lines:
                if not row:
                    continue
                if len(row) != len(header):
                    rule = f"line {lines.line_num} must have {len(header)} columns as the header"
                    raise _wrong(path, f"{rule} has, not {len(row)}", "mend the line")
                values.extend(_number(path, row, i, header, lines.line_num) for i in places)
                labels.append(_label(path, row[at].strip(), target, classes, lines.line_num))
    except UnicodeDecodeError:
        raise _wrong(path, "must be text in UTF-8", "save it as CSV in UTF-8") from None
    except csv.Error as reason:
        raise _wrong(path, f"must be a CSV file ({reason})", "save it again") from None
    if not labels:
        raise _wrong(path, "must hold at least one record", "check that it is the right file")
    x = np.frombuffer(values, np.float64).reshape(len(labels), len(chosen))
    return x, np.frombuffer(labels, np.int64).copy(), chosen


def _columns(
    path: Path, header: list[str], target: str, columns: Sequence[str] | None
) -> list[str]:
    if len(set(header)) != len(header):
        raise _wrong(path, "must have a different name for each column", "rename them")
    for name in (target, *(columns or ())):
        if name not in header:
            near = difflib.get_close_matches(name, header, n=1, cutoff=0.0)
            meant = f"did you mean {near[0]!r}?" if near else "add a header line"
            raise _wrong(path, f"has no column {name!r} (it has {', '.join(header)})", meant)
    if columns is None:
        return [name for name in header if name != target]
    if target in columns:
        raise _wrong(path, f"column {target!r} is the label", "leave it out of columns")
    return list(columns)


def _number(path: Path, row: list[str], place: int, header: list[str], line: int) -> float:
    try:
        value = float(row[place])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(
            path,
            f"line {line}, column {header[place]!r}: must be a finite number",
            "encode it as a number, or name the numeric columns in columns=",
        )
    return value


def _label(path: Path, cell: str, target: str, classes: int | Sequence[str], line: int) -> int:
    if not isinstance(classes, int):
        if cell in classes:
            return list(classes).index(cell)
        wanted = "one of the declared classes " + ", ".join(map(repr, classes))
    else:
        wanted = f"a whole number from 0 to {classes - 1}"
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if number in range(classes):  # 3.0 is 3; a fraction or NaN is in no range
            return int(number)
    rule = f"line {line}, column {target!r}: must be {wanted}"
    raise _wrong(path, rule, "recode the labels, or declare the right classes")


def _scaled(
    x: NDArray[np.float64], names: list[str], bounds: Bounds | Mapping[str, Bounds] | None
) -> NDArray[np.float32]:
    if bounds is None:
        return x.astype(np.float32)
    pairs = bounds if isinstance(bounds, Mapping) else dict.fromkeys(names, bounds)
    for name in pairs:
        if name not in names:
            rule = "must be a column that is read"
            raise DataError(f"bounds={name!r}: {rule}; use one of {', '.join(names)}.")
    result = x.copy()
    for place, name in enumerate(names):
        if name not in pairs:
            rule = "must be given for every column or for none"
            raise DataError(
                f"bounds={name!r}: {rule}; add the lowest and highest value it can have."
            )
        low, high = pairs[name]
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            rule = f"the bounds of {name!r} must be finite and ascending"
            raise DataError(f"bounds={(low, high)!r}: {rule}; give (lowest, highest).")
        result[:, place] = (np.clip(x[:, place], low, high) - low) / (high - low)
    return result.astype(np.float32)


def _wrong(path: Path, rule: str, remedy: str) -> DataError:
    end = "" if remedy.endswith("?") else "."
    return DataError(f"path={str(path)!r}: {rule}; {remedy}{end}")
