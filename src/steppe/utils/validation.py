"""One message shape for every bad value: name, value, rule, remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from steppe.errors import BudgetExhausted, ConfigurationError, SteppeError

# What a message begins with: the name, before its value or the part of it that is meant.
_NAME = re.compile(r"[A-Za-z][\w-]*(?:\.\w+)*(?=[=\[])")


def fail(name: str, value: Any, rule: str, remedy: str) -> ConfigurationError:
    """Build (not raise) the error, so that callers write `raise fail(...)` and types narrow.

    >>> print(fail("delta", 2, "must lie in (0, 1)", "use about 1/N or less"))
    delta=2: must lie in (0, 1); use about 1/N or less.
    """
    end = "" if remedy.endswith("?") else "."
    return ConfigurationError(f"{name}={value!r}: {rule}; {remedy}{end}")


def _real(name: str, value: Any, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise fail(name, value, "must be a real number", remedy)
    try:
        number = float(value)
    except OverflowError:  # a whole number or a fraction beyond the largest float
        raise fail(name, value, "must be a number that a float can hold", remedy) from None
    if math.isnan(number):
        raise fail(name, value, "must not be NaN", remedy)
    return number


def positive(name: str, value: Any, remedy: str = "give a finite value above 0") -> float:
    """A finite number above zero."""
    number = _real(name, value, remedy)
    if not 0 < number < math.inf:
        raise fail(name, value, "must be finite and above 0", remedy)
    return number


def non_negative(name: str, value: Any, remedy: str = "give a finite value, 0 or more") -> float:
    """A finite number, zero allowed."""
    number = _real(name, value, remedy)
    if not 0 <= number < math.inf:
        raise fail(name, value, "must be finite and not negative", remedy)
    return number


def open_unit(name: str, value: Any, remedy: str = "give a value between 0 and 1") -> float:
    """A number strictly between zero and one."""
    number = _real(name, value, remedy)
    if not 0 < number < 1:
        raise fail(name, value, "must lie strictly between 0 and 1", remedy)
    return number


def positive_integer(name: str, value: Any, remedy: str = "give a whole number, 1 or more") -> int:
    """A whole number above zero; booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise fail(name, value, "must be a whole number of at least 1", remedy)
    return int(value)


def path(name: str, value: Any, remedy: str) -> Path:
    """The place of a file or folder."""
    if not isinstance(value, str | PathLike):
        raise fail(name, value, "must be a path", remedy)
    return Path(value)


def one_of(name: str, value: Any, choices: Sequence[str], remedy: str | None = None) -> str:
    """One of a few names."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise fail(name, value, f"must be one of {listed}", remedy or f"use {choices[0]!r}")
    return str(value)


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Inside the block, errors about a Python argument name the key or option that it came from.

    Args:
        names: what was typed, by argument.

    Examples:
        >>> with called({"rate": "optimizer.lr"}):
        ...     raise fail("rate", -1.0, "must be above 0", "give another")
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: optimizer.lr=-1.0: must be above 0; give another.
    """
    with reworded(partial(renamed, names)):
        yield


@contextmanager
def reworded(change: Callable[[str], str]) -> Iterator[None]:
    """Inside the block, errors about what was given have other messages.

    Args:
        change: from the message to the one that is shown.
    """
    try:
        yield
    except BudgetExhausted:
        raise  # the number is a sum, which nobody typed
    except SteppeError as error:
        error.args = (change(str(error)),)
        raise


def renamed(names: Mapping[str, str], message: str) -> str:
    """A message that begins with another name, where its own is among those to change."""
    found = _NAME.match(message)
    if found is None or found[0] not in names:
        return message
    return names[found[0]] + message[found.end() :]
