"""Numbers that a loop has read from records: for logs they are numbers, and nothing may be decided
by them until `backward()` was called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Ask = Callable[[], None]
"""Raises while the loss can still be changed."""


class ReadFloat(float):
    """What `item()` gave, as a number with a decimal point."""

    ask: Ask
    __hash__ = float.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return float, (float(self),)


class ReadInt(int):
    """What `item()` gave, as a whole number."""

    ask: Ask
    __hash__ = int.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)


def read(value: Any, ask: Ask) -> Any:
    """The same number, which asks before it is compared.

    Examples:
        >>> def refuse():
        ...     raise ValueError("compared")
        >>> f"{read(0.25, refuse):.1f}", read(3, refuse) + 1
        ('0.2', 4)
        >>> read(0.25, refuse) > 1
        Traceback (most recent call last):
        ValueError: compared
    """
    kind = {float: ReadFloat, int: ReadInt}.get(type(value))
    if kind is None:
        return value
    made: Any = kind(value)
    made.ask = ask
    return made


def _asking(kind: type, name: str) -> Callable[..., Any]:
    compare = getattr(kind, name)

    def asked(self: Any, *other: Any) -> Any:
        self.ask()
        return compare(self, *other)

    return asked


for _kind, _plain in ((ReadFloat, float), (ReadInt, int)):
    for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__"):
        setattr(_kind, _name, _asking(_plain, _name))
