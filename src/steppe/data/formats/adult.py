"""The Adult census table as numbers, by constants alone.

Bounds and categories are those of the data set's documentation and of the survey's coding (two
digits of hours, five of capital gain, sixteen grades of education). None is read from the records,
so the encoding of a record reveals nothing about other records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive


@dataclass(frozen=True)
class Number:
    """A numeric column: values are clamped to the bounds and scaled to [0, 1].

    Args:
        name: the column.
        low: declared lower bound.
        high: declared upper bound.
        logarithmic: scale log(1 + value), for amounts of money that are mostly 0.
    """

    name: str
    low: float
    high: float
    logarithmic: bool = False


@dataclass(frozen=True)
class Category:
    """A categorical column: one column of 0 and 1 for each value, and one for `?` (unknown)."""

    name: str
    values: tuple[str, ...]

    @property
    def all_values(self) -> tuple[str, ...]:
        return (*self.values, "?")


def _category(name: str, values: str) -> Category:
    return Category(name, tuple(values.split()))


COLUMNS: tuple[Number | Category, ...] = (
    Number("age", 17, 90),
    _category(
        "workclass",
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked",
    ),
    Number("fnlwgt", 0, 1_000_000),
    _category(
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    ),
    Number("education-num", 1, 16),
    _category(
        "marital-status",
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse",
    ),
    _category(
        "occupation",
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces",
    ),
    _category("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    _category("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    _category("sex", "Female Male"),
    Number("capital-gain", 0, 99_999, logarithmic=True),
    Number("capital-loss", 0, 5_000, logarithmic=True),
    Number("hours-per-week", 1, 99),
    _category(
        "native-country",
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands",
    ),
)
LABELS = ("<=50K", ">50K")


def features() -> tuple[str, ...]:
    """The names of the numeric features, in order.

    Examples:
        >>> len(features()), features()[:3]
        (113, ('age', 'workclass=Private', 'workclass=Self-emp-not-inc'))
    """
    names: list[str] = []
    for column in COLUMNS:
        if isinstance(column, Number):
            names.append(column.name)
        else:
            names += [f"{column.name}={value}" for value in column.all_values]
    return tuple(names)


def read_adult(content: bytes) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features in [0, 1] (records, features) and labels: 1 for an income above 50,000 dollars.

    Args:
        content: `adult.data` or `adult.test`: comma-separated lines; lines that are empty or start
            with `|` are no records, and a label may end in a full stop.
    """
    lines = [line for line in content.decode("ascii").splitlines() if line and line[0] != "|"]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    if not rows or any(len(row) != len(COLUMNS) + 1 for row in rows):
        raise BrokenArchive(f"lines must have {len(COLUMNS) + 1} columns")
    cells = list(zip(*rows, strict=True))
    parts = [
        _numbers(column, cells[i]) if isinstance(column, Number) else _one_hot(column, cells[i])
        for i, column in enumerate(COLUMNS)
    ]
    labels = [_position(LABELS, cell.rstrip("."), "income") for cell in cells[-1]]
    return np.concatenate(parts, axis=1), np.array(labels, np.int64)


def _numbers(column: Number, cells: tuple[str, ...]) -> NDArray[np.float32]:
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        raise BrokenArchive(f"column {column.name}: must hold numbers") from None
    low, high = column.low, column.high
    values = np.clip(values, low, high)
    if column.logarithmic:
        values, low, high = np.log1p(values), math.log1p(low), math.log1p(high)
    return ((values - low) / (high - low)).astype(np.float32)[:, None]


def _one_hot(column: Category, cells: tuple[str, ...]) -> NDArray[np.float32]:
    known = column.all_values
    places = [_position(known, cell, column.name) for cell in cells]
    return np.eye(len(known), dtype=np.float32)[places]


def _position(known: tuple[str, ...], cell: str, column: str) -> int:
    try:
        return known.index(cell)
    except ValueError:
        raise BrokenArchive(f"column {column}: a value outside the documented list") from None
