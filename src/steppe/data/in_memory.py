"""Records in memory, encoded and scaled as a run read its own from files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from steppe.data.arrays import scale
from steppe.data.dataset import Split
from steppe.data.encoding import Encoding
from steppe.data.table import encode_rows
from steppe.errors import DataError

# A missing value of a data frame, as it prints.
_ABSENT = frozenset(("<NA>", "NaT"))


def from_array(
    x: NDArray[Any], *, bounds: Any = None, missing: str | None = None, source: str = "array"
) -> Tensor:
    """Inputs of a model from an array of records.

    Args:
        x: a record a row; pictures of uint8 are (records, height, width[, colour]).
        bounds, missing: as `steppe.data.read` had them; bounds as it used them.
        source: where the records are, for messages.

    Examples:
        >>> from_array(np.array([[5.0]]), bounds=[(0, 10)]).tolist()
        [[0.0]]
        >>> from_array(np.full((1, 2, 2), 255, np.uint8)).shape
        torch.Size([1, 1, 2, 2])
    """
    scaled = scale(source, x, bounds, missing is not None)[0]
    return Split(scaled, np.zeros(len(scaled), np.int64)).tensors()[0]


def from_columns(
    records: Any,
    columns: Sequence[str],
    *,
    bounds: Any = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: str | None = None,
) -> NDArray[np.float32]:
    """Inputs of a model from records of a table.

    Args:
        records: columns by name (a dict, a data frame), or rows: each a dict, or cells in the order
            of `columns`. Columns that are not used may be there.
        columns, bounds, categories, missing: as `steppe.data.read` settled them.

    Examples:
        >>> table = {"age": [25, None], "sex": ["m", "f"]}
        >>> options = {"bounds": {"age": (0, 100)}, "categories": {"sex": ["f", "m"]}}
        >>> from_columns(table, ["age", "sex"], **options, missing="middle").tolist()
        [[-0.5, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    source = type(records).__name__
    encoding = Encoding(tuple(columns), bounds, categories, missing)
    found = encode_rows(_rows(records, columns, source), source, encoding)
    if not len(found):
        raise DataError.about("path", source, "must hold at least one record", "give a record")
    return found


def _rows(records: Any, columns: Sequence[str], source: str) -> Iterable[list[str]]:
    """The cells of each record as text, in the order of the columns."""
    if isinstance(records, Mapping) or hasattr(records, "columns"):
        _require_columns(records, columns, source)
        parts = [list(records[name]) for name in columns]
        if len({len(part) for part in parts}) > 1:
            rule = "has columns of different lengths"
            raise DataError.about("path", source, rule, "give a value for each record")
        return ([_text(value) for value in row] for row in zip(*parts, strict=True))
    given = records.tolist() if isinstance(records, Tensor | np.ndarray) else records
    if not isinstance(given, Sequence) or isinstance(given, str):
        rule = "is no table"
        raise DataError.about("path", source, rule, "give columns by name, or a list of rows")
    return (_cells(row, columns, number) for number, row in enumerate(given))


def _cells(row: Any, columns: Sequence[str], number: int) -> list[str]:
    if isinstance(row, Mapping):
        _require_columns(row, columns, f"record {number}")
        return [_text(row[name]) for name in columns]
    if not isinstance(row, Sequence | np.ndarray) or isinstance(row, str):
        rule = "is no row of a table"
        remedy = f"give a list of rows, each with {', '.join(columns)}"
        raise DataError.about("path", f"record {number}", rule, remedy)
    if len(row) != len(columns):
        rule = f"must have {len(columns)} cells, {', '.join(columns)}, not {len(row)}"
        raise DataError.about("path", f"record {number}", rule)
    return [_text(value) for value in row]


def _require_columns(found: Any, columns: Sequence[str], source: str) -> None:
    there = list(getattr(found, "columns", found))
    for name in columns:
        if name not in there:
            remedy = f"give {', '.join(columns)}"
            raise DataError.about("path", source, f"has no column {name!r}", remedy)


def _text(value: Any) -> str:
    """A value as a file has it in its cell.

    Examples:
        >>> [_text(value) for value in (" f ", 3, 3.0, 0.1, None, float("nan"))]
        ['f', '3', '3', '0.1', '', 'nan']
    """
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)  # a column of whole numbers is one of floats where a value is missing
        whole = math.isfinite(number) and number.is_integer()
        return str(int(number)) if whole else repr(number)
    text = str(value).strip()
    return "" if text in _ABSENT else text
