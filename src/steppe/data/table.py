"""A table in a CSV file: a column of labels, the rest numbers and declared categories."""

from __future__ import annotations

import csv
import difflib
import itertools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steppe import _validate
from steppe.data.scaling import (
    LARGEST,
    Bounds,
    column_bounds,
    from_records,
    pair,
    scaled_columns,
)
from steppe.errors import DataError

# What programs write where a value is missing.
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
MIDDLE = "middle"
Targets = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True)
class Encoding:
    """How the cells of a record become its inputs.

    Args:
        columns: the columns to use, in the order of the inputs; None for all but the target.
        bounds: of the columns of numbers: one pair for all, one for each, "records" to read them
            off the records, or None to take numbers as they are.
        categories: what a column of text can say; an input of 0 or 1 for each.
        missing: "middle" puts the middle of its bounds in place of a missing number, and none of
            its categories in place of a missing text; None refuses them.
    """

    columns: tuple[str, ...] | None = None
    bounds: Any = None
    categories: Mapping[str, Sequence[str]] | None = None
    missing: str | None = None


class Records(NamedTuple):
    """What a table holds.

    Args:
        x: inputs, float32.
        y: labels or numbers to predict, or None where no target was named.
        encoding: how they were made, with columns and bounds settled.
    """

    x: NDArray[np.float32]
    y: Targets | None
    encoding: Encoding


def read_table(
    path: Path,
    target: str | None,
    classes: int | Sequence[str] | None,
    encoding: Encoding,
) -> Records:
    """Read a CSV file with a header line, once; see `steppe.data.read` for the arguments.

    Without classes the target is a number, as for a regression.

    Guarantees:
        Nothing but bounds is computed over several records, and those only where the encoding asks
        for it. Messages name lines and columns and show no value of a record.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            # Strict: a quote that is never closed would swallow all lines after it.
            lines = csv.reader(file, strict=True)
            header = [name.strip() for name in next(lines, [])]
            settled = _settled(path, header, target, encoding)
            cells = _cells(path, lines, header, target, classes, settled)
    except IsADirectoryError:
        raise _wrong(path, "is a folder", "give a CSV file") from None
    except UnicodeDecodeError:
        raise _wrong(path, "must be text in UTF-8", "save it as CSV in UTF-8") from None
    except csv.Error as reason:
        raise _wrong(path, f"must be a CSV file ({reason})", "save it again") from None
    values, targets = cells
    if not len(values):
        raise _wrong(path, "must hold at least one record", "check that it is the right file")
    return _encoded(values, targets if target is not None else None, settled)


def column_names(path: Path) -> list[str]:
    """The names in the header line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [name.strip() for name in next(csv.reader(file, strict=True), [])]
    except (UnicodeDecodeError, csv.Error):
        return []  # whoever reads the records says what is wrong


def _settled(path: Path, header: list[str], target: str | None, encoding: Encoding) -> Encoding:
    """The encoding with its columns named, each of them there."""
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise _wrong(path, "must have commas between its columns", "save it as CSV with commas")
    if len(set(header)) != len(header):
        raise _wrong(path, "must have a different name for each column", "rename them")
    columns, categories = encoding.columns, _texts_by_column(encoding.categories)
    if target is not None and target not in header:
        raise _no_column(path, "target", target, header)
    for name in columns or ():
        if name not in header:
            raise _no_column(path, "columns", name, header)
    if columns is None:
        if "" in header:
            rule = f"column {header.index('') + 1} must have a name, unless it is no input"
            raise _wrong(path, rule, "name it, save without line numbers, or give columns")
        columns = tuple(name for name in header if name != target)
    if len(set(columns)) != len(columns):
        raise _validate.fail("columns", columns, "must be different columns", "name each once")
    if target is not None and target in columns:
        raise DataError(f"columns={target!r}: is the target; leave it out of the columns.")
    if not columns:
        raise _wrong(path, "must have a column beside the label", "add one")
    for name in categories:
        if name not in columns:
            raise _unread("categories", name, columns)
    if encoding.missing not in (None, MIDDLE):
        rule = f'must be "{MIDDLE}"'
        raise _validate.fail("missing", encoding.missing, rule, "or leave it out")
    numbers = [name for name in columns if name not in categories]
    bounds = encoding.bounds
    if bounds is None and encoding.missing is not None and numbers:
        rule = f"needs bounds, since {MIDDLE!r} is the middle between them"
        raise _validate.fail("missing", encoding.missing, rule, 'declare them, or bounds="records"')
    if bounds is not None and not from_records(bounds):
        bounds = _declared(bounds, numbers)
    return replace(encoding, columns=columns, bounds=bounds, categories=categories)


def different_texts(name: str, given: Any, rule: str) -> list[str]:
    """Texts as cells are compared with them, without blanks around them.

    Args:
        name: the argument that holds them, for messages.
        given: from the user.
        rule: what they must be, for messages.
    """
    whole = isinstance(given, Sequence) and not isinstance(given, str)
    texts = [text.strip() for text in given if isinstance(text, str)] if whole else []
    if not texts or len(texts) != len(given) or len(set(texts)) != len(texts):
        raise _validate.fail(name, given, rule, 'write ["no", "yes"], say')
    return texts


def _texts_by_column(categories: Any) -> dict[str, Sequence[str]]:
    if not isinstance(categories, Mapping | None):
        rule = "must name columns, each with its texts"
        raise _validate.fail("categories", categories, rule, 'write {"sex": ["f", "m"]}, say')
    return {
        name: different_texts("categories", texts, f"of {name!r} must be a list of different texts")
        for name, texts in (categories or {}).items()
    }


def _no_column(path: Path, option: str, name: str, header: list[str]) -> DataError:
    # A file without a header line begins with a record, which a message must not show. Words above
    # numbers are no record's.
    with path.open(newline="", encoding="utf-8-sig") as file:
        record = next(itertools.islice(csv.reader(file), 1, None), [])
    below = [value for cell in record if (value := _number(cell.strip())) is not None]
    header_like = not any(_number(word) is not None for word in header)
    if not header_like or all(map(math.isnan, below)):  # an empty cell may stand below anything
        rule = f"is no column in the first line of {str(path)!r}"
        return DataError(f"{option}={name!r}: {rule}; add a header line, or correct the name.")
    near = difflib.get_close_matches(name, header, n=1, cutoff=0.0)
    rule = f"is no column of {str(path)!r} (it has {', '.join(header)})"
    return DataError(f"{option}={name!r}: {rule}; did you mean {near[0]!r}?")


def _declared(bounds: Any, numbers: list[str]) -> dict[str, Bounds]:
    if not isinstance(bounds, Mapping):
        return dict.fromkeys(numbers, pair("all columns", bounds))
    for name in bounds:
        if name not in numbers:
            raise _unread("bounds", name, numbers)
    for name in numbers:
        if name not in bounds:
            rule = "must be given for every column or for none"
            raise DataError(
                f"bounds={name!r}: {rule}; add the lowest and highest value it can have."
            )
    return {name: pair(repr(name), bounds[name]) for name in numbers}


def _cells(
    path: Path,
    lines: Any,
    header: list[str],
    target: str | None,
    classes: int | Sequence[str] | None,
    encoding: Encoding,
) -> tuple[NDArray[np.float64], Targets]:
    """A number for each cell: its value, or the place of its category; NaN for a missing one."""
    columns, known = encoding.columns or (), encoding.categories or {}
    readers: list[tuple[int, str, Callable[[str], float | None]]] = [
        (header.index(name), name, _place(known[name]) if name in known else _number)
        for name in columns
    ]
    label = None if target is None else (header.index(target), _label(classes))
    values, targets = array("d"), array("d")
    count = 0
    for row in lines:
        if not row:
            continue
        count, line = count + 1, lines.line_num
        if len(row) != len(header):
            rule = f"line {line} must have {len(header)} columns as the header has, not {len(row)}"
            raise _wrong(path, rule, "mend the line")
        for at, name, read in readers:
            value = read(row[at].strip())
            if value is None:
                raise _refused(path, line, name, name in known)
            if math.isnan(value) and encoding.missing is None:
                raise _absent(path, line, name)
            values.append(value)
        if label is not None:
            found = label[1](row[label[0]].strip())
            if found is None or math.isnan(found):
                raise _wrong_target(path, f"line {line}, column {target!r}", classes)
            targets.append(found)
    shape = (count, len(columns))
    numbers = np.frombuffer(targets, np.float64)
    return np.frombuffer(values, np.float64).reshape(shape), (
        numbers.astype(np.float32) if classes is None else numbers.astype(np.int64)
    )


def _encoded(values: NDArray[np.float64], targets: Targets | None, encoding: Encoding) -> Records:
    columns, known = encoding.columns or (), encoding.categories or {}
    numeric = [place for place, name in enumerate(columns) if name not in known]
    bounds = encoding.bounds
    if from_records(bounds):
        names = (columns[place] for place in numeric)
        bounds = dict(zip(names, column_bounds(values[:, numeric]), strict=True))
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
    return Records(x, targets, replace(encoding, bounds=bounds))


def _number(cell: str) -> float | None:
    """NaN where the cell says that the value is missing, None where it is no finite float32."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan if cell.lower() in _MISSING else None
    return None if abs(value) > LARGEST else value


def _place(texts: Sequence[str]) -> Callable[[str], float | None]:
    places = {text: float(place) for place, text in enumerate(texts)}

    def read(cell: str) -> float | None:
        found = places.get(cell)
        return math.nan if found is None and cell.lower() in _MISSING else found

    return read


def _label(classes: int | Sequence[str] | None) -> Callable[[str], float | None]:
    if classes is None:
        return _number
    if not isinstance(classes, int):
        return {text: float(place) for place, text in enumerate(classes)}.get

    def read(cell: str) -> float | None:
        number = _number(cell)
        return number if number in range(classes) else None  # 3.0 is 3; a fraction is in no range

    return read


def _wrong_target(path: Path, where: str, classes: int | Sequence[str] | None) -> DataError:
    if classes is None:
        return _wrong(path, f"{where}: must be a finite number", "leave out records without one")
    if isinstance(classes, int):
        wanted = f"a whole number from 0 to {classes - 1}"
    else:
        wanted = "one of the declared classes " + ", ".join(map(repr, classes))
    remedy = "recode the labels, or declare their number or names as classes="
    return _wrong(path, f"{where}: must be {wanted}", remedy)


def _refused(path: Path, line: int, name: str, text: bool) -> DataError:
    where = f"line {line}, column {name!r}"
    if text:
        return _wrong(path, f"{where}: must be one of its categories", "declare all of them")
    rule = f"{where}: must be a finite number"
    remedy = "declare the texts of a column by categories=, or leave it out by columns="
    return _wrong(path, rule, remedy)


def _absent(path: Path, line: int, name: str) -> DataError:
    rule = f"line {line}, column {name!r}: has no value"
    return _wrong(path, rule, f'fill it in, or set missing="{MIDDLE}"')


def _unread(option: str, name: str, columns: Sequence[str]) -> DataError:
    rule = "must be a column that is read" + (" as numbers" if option == "bounds" else "")
    return DataError(f"{option}={name!r}: {rule}; use one of {', '.join(columns)}.")


def _wrong(path: Path, rule: str, remedy: str) -> DataError:
    end = "" if remedy.endswith("?") else "."
    return DataError(f"path={str(path)!r}: {rule}; {remedy}{end}")
