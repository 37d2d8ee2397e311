"""Numbers that a loop has read from records: for logs they are numbers, and they are known as read
wherever Python's arithmetic takes them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class ReadFloat(float):
    """What `item()` gave, as a number with a decimal point, and what was computed from it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return float, (float(self),)


class ReadInt(int):
    """What `item()` gave, as a whole number, and what was computed from it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)


READ = (ReadFloat, ReadInt)


def read(value: Any) -> Any:
    """The same number, known as one that was read.

    Examples:
        >>> mean = 0.9 * read(0.5) + 1
        >>> print(mean, type(mean).__name__, type(float(mean)).__name__)
        1.45 ReadFloat float
    """
    if isinstance(value, float):
        return ReadFloat(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return ReadInt(value)
    return value


def _marking(plain: type, name: str) -> Callable[..., Any]:
    """An operator whose result is known as read."""
    reflected = name not in _ONE and name.startswith("r")
    compute: Any = {"abs": abs, "round": round}.get(name) or getattr(
        operator, name.removeprefix("r")
    )

    def marked(self: Any, *others: Any) -> Any:
        if not all(other is None or isinstance(other, (int, float)) for other in others):
            return NotImplemented  # a tensor is asked then, and meets the number itself
        given = (plain(self), *others)
        return read(compute(*(given[::-1] if reflected else given)))

    return marked


_ONE = ("neg", "pos", "abs", "round")
_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _kind, _plain in ((ReadFloat, float), (ReadInt, int)):
    for _name in (*_ONE, *_TWO, *(f"r{name}" for name in _TWO)):
        setattr(_kind, f"__{_name}__", _marking(_plain, _name))
