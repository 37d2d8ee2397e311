"""A table in a CSV file: a column of labels, the rest numbers and declared categories."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steppe.data.cells import Reader, category, label, number
from steppe.data.encoding import MIDDLE, Encoding, settled, wrong
from steppe.data.holdout import is_held_out, require_both_parts
from steppe.data.scaling import column_bounds, from_records, scaled_columns
from steppe.errors import DataError

Targets = NDArray[np.int64] | NDArray[np.float32]


class TableData(NamedTuple):
    """What a table holds.

    Args:
        x: inputs, float32.
        y: labels or numbers to predict, or None where no target was named.
        encoding: how they were made, with columns and bounds settled.
        held: which records are kept out of training.
    """

    x: NDArray[np.float32]
    y: Targets | None
    encoding: Encoding
    held: NDArray[np.bool_]


def read_table(
    path: Path,
    target: str | None,
    classes: int | Sequence[str] | None,
    encoding: Encoding,
    holdout: float | None = None,
) -> TableData:
    """Read a CSV file with a header line, once; see `steppe.data.read` for the arguments.

    Without classes the target is a number, as for a regression. Bounds are not read off records
    that are kept out of training.

    Guarantees:
        Nothing but bounds is computed over several records, and those only where the encoding asks
        for it. Messages name lines and columns and show no value of a record.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            # Strict: a quote that is never closed would swallow all lines after it.
            lines = csv.reader(file, strict=True)
            header = [name.strip() for name in next(lines, [])]
            encoding = settled(path, header, target, encoding)
            rows = ((f"line {lines.line_num}", row) for row in lines if row)
            values, targets, held = _cells(path, rows, header, target, classes, encoding, holdout)
    except IsADirectoryError:
        raise wrong(path, "is a folder", "give a CSV file") from None
    except UnicodeDecodeError:
        raise wrong(path, "must be text in UTF-8", "save it as CSV in UTF-8") from None
    except csv.Error as reason:
        raise wrong(path, f"must be a CSV file ({reason})", "save it again") from None
    if not len(values):
        raise wrong(path, "must hold at least one record", "check that it is the right file")
    if holdout is not None:
        require_both_parts(str(path), held, holdout)
    return _encoded(values, targets if target is not None else None, encoding, held)


def encode_rows(rows: Iterable[list[str]], source: str, encoding: Encoding) -> NDArray[np.float32]:
    """Records in memory, as `read_table` encodes those of a file.

    Args:
        rows: the cells of each record, in the order of the encoding's columns.
        source: what holds them, for messages.
        encoding: with its columns named.
    """
    header, path = list(encoding.columns or ()), Path(source)
    encoding = settled(path, header, None, encoding)
    numbered = ((f"record {number}", row) for number, row in enumerate(rows))
    values, _, held = _cells(path, numbered, header, None, None, encoding)
    return _encoded(values, None, encoding, held).x


def column_names(path: Path) -> list[str]:
    """The names in the header line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [name.strip() for name in next(csv.reader(file, strict=True), [])]
    except (UnicodeDecodeError, csv.Error):
        return []  # whoever reads the records says what is wrong


def _cells(
    path: Path,
    rows: Iterable[tuple[str, list[str]]],
    header: list[str],
    target: str | None,
    classes: int | Sequence[str] | None,
    encoding: Encoding,
    holdout: float | None = None,
) -> tuple[NDArray[np.float64], Targets, NDArray[np.bool_]]:
    """A number for each cell: its value, or the place of its category; NaN for a missing one.

    The last part says which records are kept out of training. A row comes with the place where it
    stands, for messages.
    """
    columns, known = encoding.columns or (), encoding.categories or {}
    readers: list[tuple[int, str, Reader]] = [
        (header.index(name), name, category(known[name]) if name in known else number)
        for name in columns
    ]
    predicted = None if target is None else (header.index(target), label(classes))
    values, targets = array("d"), array("d")
    held: list[bool] = []
    count = 0
    for line, row in rows:
        count += 1
        if len(row) != len(header):
            rule = f"{line} must have {len(header)} columns as the header has, not {len(row)}"
            raise wrong(path, rule, "mend the line")
        kept = holdout is not None and is_held_out(
            "\x1f".join(cell.strip() for cell in row).encode(), holdout
        )
        held.append(kept)
        for at, name, read in readers:
            value = read(row[at].strip())
            if value is None:
                raise _refused(path, line, name, name in known)
            if math.isnan(value) and encoding.missing is None:
                raise _absent(path, line, name)
            values.append(value)
        if predicted is not None:
            at, read = predicted
            found = read(row[at].strip())
            if found is None or math.isnan(found):
                raise _wrong_target(path, f"{line}, column {target!r}", classes)
            targets.append(found)
    shape = (count, len(columns))
    numbers = np.frombuffer(targets, np.float64)
    known_targets: Targets = (
        numbers.astype(np.float32) if classes is None else numbers.astype(np.int64)
    )
    return np.frombuffer(values, np.float64).reshape(shape), known_targets, np.array(held, np.bool_)


def _encoded(
    values: NDArray[np.float64],
    targets: Targets | None,
    encoding: Encoding,
    held: NDArray[np.bool_],
) -> TableData:
    columns, known = encoding.columns or (), encoding.categories or {}
    numeric = [place for place, name in enumerate(columns) if name not in known]
    bounds = encoding.bounds
    if from_records(bounds):
        names = (columns[place] for place in numeric)
        bounds = dict(zip(names, column_bounds(values[~held][:, numeric]), strict=True))
    if bounds is not None:
        values = values.copy()
        values[:, numeric] = scaled_columns(values[:, numeric], list(bounds.values()))
    parts = [
        values[:, place : place + 1]
        if name not in known
        else values[:, place : place + 1] == np.arange(len(known[name]))
        for place, name in enumerate(columns)
    ]
    x = np.concatenate(parts, axis=1, dtype=np.float32)
    return TableData(x, targets, replace(encoding, bounds=bounds), held)


def _wrong_target(path: Path, where: str, classes: int | Sequence[str] | None) -> DataError:
    if classes is None:
        return wrong(path, f"{where}: must be a finite number", "leave out records without one")
    if isinstance(classes, int):
        wanted = f"a whole number from 0 to {classes - 1}"
    else:
        wanted = "one of the declared classes " + ", ".join(map(repr, classes))
    remedy = "recode the labels, or declare their number or names as classes="
    return wrong(path, f"{where}: must be {wanted}", remedy, "classes=")


def _refused(path: Path, line: str, name: str, text: bool) -> DataError:
    where = f"{line}, column {name!r}"
    if text:
        return wrong(path, f"{where}: must be one of its categories", "declare all of them")
    rule = f"{where}: must be a finite number"
    remedy = "declare the texts of a column by categories=, or leave it out by columns="
    return wrong(path, rule, remedy, "categories=", "columns=")


def _absent(path: Path, line: str, name: str) -> DataError:
    rule = f"{line}, column {name!r}: has no value"
    way = f'missing="{MIDDLE}"'
    return wrong(path, rule, f"fill it in, or set {way}", way)
