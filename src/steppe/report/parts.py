"""Values of `figures.json`, checked as they are read, and whether they may be shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steppe.errors import DataError
from steppe.report.run import number


def may_be_shown(part: Mapping[str, Any]) -> bool:
    """Whether a measurement is of public data or part of the account."""
    return part.get("public") is True or part.get("accounted") is True


def origin(part: Mapping[str, Any]) -> str:
    """Where a measurement comes from and why it may be shown, as a sentence."""
    data = str(part.get("data") or "data whose name was not kept")
    if part.get("public") is True:
        return f"Measured on {data}, declared free to be shown; ε says nothing about these records."
    return f"Measured on {data} by a noisy count that the account includes."


def needed(part: Mapping[str, Any], key: str) -> float:
    """A finite number."""
    value = number(part, key)
    if value is None or not math.isfinite(value):
        raise malformed(key, "must be a finite number")
    return value


def numbers(part: Mapping[str, Any], key: str) -> list[float]:
    """At least one finite number."""
    values = part.get(key)
    if not isinstance(values, list) or not values:
        raise malformed(key, "must be a list of numbers")
    return [needed({key: value}, key) for value in values]


def mapping(part: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Values by name."""
    value = part.get(key)
    if not isinstance(value, dict):
        raise malformed(key, "must be an object")
    return value


def malformed(part: str, rule: str) -> DataError:
    """The error for a part that is not as it was written, to be raised."""
    return DataError(f"The part {part!r} of figures.json {rule}; measure again.")
