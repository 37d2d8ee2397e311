"""Checks of the records for the eyes of their owner, before any budget is spent.

What they find is shown to whoever runs the training, who sees the records anyway. It belongs in no
file of a run, because ε does not cover it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.errors import DataError, DataWarning
from steppe.records.records import Records
from steppe.utils.user_code import level

# A target of this size gives a squared error that no learning rate by rule is made for.
_LARGE, _SMALL = 10.0, 1e-3
# Shares and factors beyond which a note, or an error, is due.
_MANY_LOST, _POPULATION_NOTE, _POPULATION_ERROR = 0.5, 1.1, 10.0
# Fewer records than this may be all different, or all the same, by chance.
_FEW = 50
_AT_ONCE = 8192
_NAMED = 5
# Records with more inputs are no table that somebody made by hand.
_WIDEST = 512
_ID_NAMES = ("id", "uuid", "guid", "index", "rownames", "rowid", "ssn", "unnamed: 0")
_OPT_OUT = ("checks=False",)


@dataclass
class _Columns:
    """What is known so far of the columns of a table."""

    low: Tensor
    high: Tensor
    values: list[Tensor]


def read_by_checks(rows: Records, population: int | None) -> str | None:
    """What `check_for_owner` reads: "records", "length", or None for nothing.

    Args:
        rows: the records to train on.
        population: declared, or None.
    """
    example = rows.example()
    pairs = isinstance(example, tuple | list) and len(example) == 2
    if not rows.run_users_code and pairs and all(isinstance(part, Tensor) for part in example):
        return "records"
    return None if population is None else "length"


def check_for_owner(
    rows: Records, population: int | None, columns: Sequence[str] = (), numbers: bool = False
) -> str | None:
    """Look for signs that the records are not what a model can learn from.

    Args:
        rows: the records to train on. Only data in memory are read: reading others would run the
            user's own code.
        population: declared, or None.
        columns: the names of the inputs of a record, for messages.
        numbers: whether targets are real numbers, as for a regression.

    Returns:
        What was read, for the privacy statement; see `read_by_checks`.

    Raises:
        DataError: for targets far from unit scale or not finite, if more than half of the records
            have inputs that are not finite, and for a population ten times as large or small as the
            number of records. Everything else is a `DataWarning`.

    Guarantees:
        Nothing is written. Messages show no value of a record.
    """
    _population(len(rows), population)
    reads = read_by_checks(rows, population)
    if reads != "records":
        return reads
    lost, targets, table = _read(rows, rows.example())
    if lost:
        _not_finite(lost / len(rows))
    if numbers and targets:
        _scale(torch.cat(targets))
    if table is not None and len(rows) >= _FEW:
        _constant(table, columns)
        _identifiers(table, columns)
    return reads


def _read(rows: Records, example: Any) -> tuple[int, list[Tensor], _Columns | None]:
    """How many records have inputs that are not finite; the targets, if they are numbers; and the
    columns of a table."""
    inputs, target = example
    wide = inputs.shape[1:].numel()
    is_table = inputs.dim() == 2 and inputs.is_floating_point() and wide <= _WIDEST
    found = _Columns(torch.full((wide,), torch.inf), torch.full((wide,), -torch.inf), [])
    lost, targets = 0, []
    for start in range(0, len(rows), _AT_ONCE):
        x, y = rows.batch(torch.arange(start, min(start + _AT_ONCE, len(rows)), device="cpu"))
        if x.is_floating_point():
            lost += int((~torch.isfinite(x.flatten(1))).any(1).sum())
        if target.is_floating_point():
            targets.append(y.flatten().double())
        if is_table:
            x = x.cpu()
            found.low = torch.minimum(found.low, x.amin(0))
            found.high = torch.maximum(found.high, x.amax(0))
            found.values.append(x)
    return lost, targets, found if is_table else None


def _population(records: int, population: int | None) -> None:
    if population is None or records == 0:
        return
    factor = max(records / population, population / records)
    if factor >= _POPULATION_ERROR:
        rule = "is ten or more times off the number of records in the data"
        remedy = "declare about their number, or pass checks=False to keep it"
        raise DataError.about("population", population, rule, remedy, _OPT_OUT)
    if factor > _POPULATION_NOTE:
        more = "more" if records > population else "fewer"
        batches = "larger" if records > population else "smaller"
        _warn(
            f"population={population}: the data have {more} records, so batches are {batches} than "
            "planned while the noise is not"
        )


def _not_finite(share: float) -> None:
    what = "of the records have an input that is NaN or infinite"
    if share > _MANY_LOST:
        rule = f"{what}, and would contribute to no step"
        remedy = "fill in what is missing, or pass checks=False to train on the rest"
        raise DataError.about("data", f"{100 * share:.2g} %", rule, remedy, _OPT_OUT)
    _warn(
        f"{100 * share:.2g} % {what}: their gradients are not finite, so they contribute to no step"
    )


def _scale(targets: Tensor) -> None:
    if not bool(torch.isfinite(targets).all()):
        rule = "must be finite: records with other targets would contribute to no step"
        raise DataError.about("targets", "NaN or infinite", rule, "leave these records out")
    middle, spread = float(targets.mean().abs()), float(targets.std(correction=0))
    size = max(middle, spread)
    if size <= _LARGE and (spread >= _SMALL or len(targets) < _FEW):
        return
    found = "large" if size > _LARGE else "almost the same in all records"
    rule = "are far from unit scale, which the learning rate and the clipping norm are made for"
    remedy = (
        "declare the lowest and highest value that a target can have, target_bounds=LOW,HIGH, or "
        "scale them to about −1 to 1 by constants; checks=False trains on them as they are"
    )
    ways = ("target_bounds=LOW,HIGH", *_OPT_OUT)
    raise DataError.about("targets", found, rule, remedy, ways)


def _constant(table: _Columns, columns: Sequence[str]) -> None:
    same = (table.low == table.high).nonzero().flatten().tolist()
    if same:
        _warn(f"{_named(same, columns)} the same in every record and cannot help to predict")


def _identifiers(table: _Columns, columns: Sequence[str]) -> None:
    """Columns by a name such as `patient_id`, or whose values are consecutive numbers."""
    values = torch.cat(table.values)
    found = []
    for place in (table.high > table.low).nonzero().flatten().tolist():
        column = values[:, place].double().sort().values
        gaps = column.diff()
        if bool((gaps <= 0).sum() > 0.02 * len(gaps)):  # values are repeated, as a measure's are
            continue
        name = columns[place].strip().lower() if place < len(columns) else ""
        called = name in _ID_NAMES or name.endswith(("_id", " id", "-id"))
        if called or _consecutive(gaps):
            found.append(place)
    if found:
        _warn(
            f"{_named(found, columns)} different in every record, like an identifier: a model can "
            "only memorise it, which privacy prevents; leave it out"
        )


def _consecutive(gaps: Tensor) -> bool:
    """Whether nearly all gaps between sorted values are alike, as of row numbers."""
    usual = float(gaps.median())
    alike = ((gaps - usual).abs() <= 0.1 * usual).double().mean()
    return usual > 0 and float(alike) > 0.95


def _named(places: Sequence[int], columns: Sequence[str]) -> str:
    names = [repr(columns[at]) if at < len(columns) else f"number {at}" for at in places]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = ", ".join(names[:_NAMED]) + more
    return f"column {listed} is" if len(names) == 1 else f"columns {listed} are"


def _warn(text: str) -> None:
    warnings.warn(f"{text}.", DataWarning, stacklevel=level())
