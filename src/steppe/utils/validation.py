"""Checks of arguments. Errors name arguments as the user knows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from steppe.errors import BudgetExhausted, ConfigurationError, SteppeError

# Make (not raise) the error about a value, so that callers write `raise fail(...)`; or about one
# that was not given.
fail, missing = ConfigurationError.about, ConfigurationError.missing


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


def positive(name: str, value: Any, remedy: str = "") -> float:
    """A finite number above zero."""
    number = _real(name, value, remedy)
    if not 0 < number < math.inf:
        raise fail(name, value, "must be finite and above 0", remedy)
    return number


def non_negative(name: str, value: Any, remedy: str = "") -> float:
    """A finite number, zero allowed."""
    number = _real(name, value, remedy)
    if not 0 <= number < math.inf:
        raise fail(name, value, "must be finite and not negative", remedy)
    return number


def open_unit(name: str, value: Any, remedy: str = "") -> float:
    """A number strictly between zero and one."""
    number = _real(name, value, remedy)
    if not 0 < number < 1:
        raise fail(name, value, "must lie strictly between 0 and 1", remedy)
    return number


def positive_integer(name: str, value: Any, remedy: str = "") -> int:
    """A whole number above zero; booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise fail(name, value, "must be a whole number of at least 1", remedy)
    return int(value)


def path(name: str, value: Any, remedy: str) -> Path:
    """The place of a file or folder."""
    if not isinstance(value, str | PathLike):
        raise fail(name, value, "must be a path", remedy)
    return Path(value)


def one_of(name: str, value: Any, choices: Sequence[str], remedy: str = "") -> str:
    """One of a few names."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise fail(name, value, f"must be one of {listed}", remedy)
    return str(value)


def exactly_one(remedy: str, **given: Any) -> None:
    """Require exactly one of two arguments.

    Examples:
        >>> exactly_one("the other follows", steps=None, epochs=None)
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: `steps` or `epochs` is required; the other follows.
    """
    (name, value), (other, second) = given.items()
    if value is None and second is None:
        raise missing(name, remedy, f"or `{other}` is required")
    if value is not None and second is not None:
        raise fail(name, value, f"cannot be given together with {other}={second!r}", remedy)


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """A block in which errors about a Python argument name its key or option.

    Args:
        names: what was typed, by argument.

    Examples:
        >>> with called({"rate": "optimizer.lr"}):
        ...     raise fail("rate", -1.0, "must be above 0", "give another")
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: optimizer.lr=-1.0: must be above 0; give another.
    """
    with reworded(lambda error: error.rename(names)):
        yield


@contextmanager
def reworded(change: Callable[[SteppeError], None]) -> Iterator[None]:
    """A block in which errors are changed before they are raised.

    Args:
        change: writes other names or remedies into the error.
    """
    try:
        yield
    except BudgetExhausted:
        raise  # the number is a sum, which nobody typed
    except SteppeError as error:
        change(error)
        raise
