"""How the columns of a table are converted to inputs, checked against the file's header line."""

from __future__ import annotations

import csv
import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steppe.data.cells import number
from steppe.data.scaling import Bounds, from_records, no_middle, pair
from steppe.errors import DataError
from steppe.utils import validation

MIDDLE = "middle"


@dataclass(frozen=True)
class Encoding:
    """How the cells of a record are converted to inputs.

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


def settled(path: Path, header: list[str], target: str | None, encoding: Encoding) -> Encoding:
    """The encoding with all its columns, checked against the header.

    Args:
        path: the file, for messages.
        header: the names in its first line.
        target: the column to predict, if there is one.
        encoding: as given by the user.
    """
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise wrong(path, "must have commas between its columns", "save it as CSV with commas")
    if len(set(header)) != len(header):
        raise wrong(path, "must have a different name for each column", "rename them")
    columns, categories = encoding.columns, _texts_by_column(encoding.categories)
    if target is not None and target not in header:
        raise _no_column(path, "target", target, header)
    for name in columns or ():
        if name not in header:
            raise _no_column(path, "columns", name, header)
    if columns is None:
        if "" in header:
            rule = f"column {header.index('') + 1} has no header"
            raise wrong(
                path, rule, "save the file without its index, or choose columns=", "columns="
            )
        columns = tuple(name for name in header if name != target)
    if len(set(columns)) != len(columns):
        raise validation.fail("columns", columns, "must be different", "name each column once")
    if target is not None and target in columns:
        raise DataError.about("columns", target, "is the target", "leave it out of the columns")
    if not columns:
        raise wrong(path, "must have a column beside the label", "add one")
    for name in categories:
        if name not in columns:
            raise _unread("categories", name, columns)
    if encoding.missing not in (None, MIDDLE):
        rule = f'must be "{MIDDLE}"'
        raise validation.fail("missing", encoding.missing, rule, "or leave it out")
    numbers = [name for name in columns if name not in categories]
    bounds = encoding.bounds
    if bounds is None and encoding.missing is not None and numbers:
        raise no_middle()
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
        raise validation.fail(name, given, rule, 'write ["no", "yes"], say')
    return texts


def _texts_by_column(categories: Any) -> dict[str, Sequence[str]]:
    if not isinstance(categories, Mapping | None):
        rule = "must name columns, each with its texts"
        raise validation.fail("categories", categories, rule, 'write {"sex": ["f", "m"]}, say')
    return {
        name: different_texts("categories", texts, f"of {name!r} must be a list of different texts")
        for name, texts in (categories or {}).items()
    }


def _declared(bounds: Any, numbers: list[str]) -> dict[str, Bounds]:
    if not isinstance(bounds, Mapping):
        return dict.fromkeys(numbers, pair("all columns", bounds))
    for name in bounds:
        if name not in numbers:
            raise _unread("bounds", name, numbers)
    for name in numbers:
        if name not in bounds:
            rule = "must be given for every column or for none"
            raise DataError.about(
                "bounds", name, rule, "add the lowest and highest value it can have"
            )
    return {name: pair(repr(name), bounds[name]) for name in numbers}


def _no_column(path: Path, option: str, name: str, header: list[str]) -> DataError:
    # A file without a header line begins with a record, which a message must not show. Words above
    # numbers are a header.
    with path.open(newline="", encoding="utf-8-sig") as file:
        record = next(itertools.islice(csv.reader(file), 1, None), [])
    below = [value for cell in record if (value := number(cell.strip())) is not None]
    header_like = not any(number(word) is not None for word in header)
    if not header_like or all(map(math.isnan, below)):  # an empty cell may stand below anything
        rule = f"is not a column in the first line of {str(path)!r}"
        return DataError.about(option, name, rule, "add a header line, or correct the name")
    near = difflib.get_close_matches(name, header, n=1, cutoff=0.0)
    rule = f"is not a column of {str(path)!r} (it has {', '.join(header)})"
    return DataError.about(option, name, rule, f"did you mean {near[0]!r}?")


def _unread(option: str, name: str, columns: Sequence[str]) -> DataError:
    rule = "must be a column that is read" + (" as numbers" if option == "bounds" else "")
    return DataError.about(option, name, rule, f"use one of {', '.join(columns)}")


def wrong(path: Path, rule: str, remedy: str, *mentions: str) -> DataError:
    """The error about an invalid file."""
    return DataError.about("path", path, rule, remedy, mentions)
