"""Reads and writes configuration files in TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from steppe.errors import DataError
from steppe.utils.validation import fail

_LARGEST = 2**24  # bounds of some 500,000 columns


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError.about(
            "file", str(path), f"cannot be read ({error.strerror})", "give a TOML file"
        ) from None
    if len(data) > _LARGEST:
        raise DataError.about(
            "file", str(path), "is too large for a configuration", "give a TOML file"
        )
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError.about(
            "file", str(path), f"is not TOML ({error})", "correct it there"
        ) from None


def write_toml(tables: Mapping[str, Any]) -> str:
    """Tables as text that reads back to the same.

    Examples:
        >>> print(write_toml({"plan": {"epsilon": 2.0, "point": {"name": "SAT", "radius": 0.03}}}))
        [plan]
        epsilon = 2.0
        <BLANKLINE>
        [plan.point]
        name = "SAT"
        radius = 0.03
        <BLANKLINE>
    """
    return "\n".join(_lines("", tables)).strip("\n") + "\n"


def _lines(where: str, table: Mapping[str, Any]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if where and (plain or not table):
        yield f"[{where}]"
    for key, value in plain.items():
        if value is not None:
            yield f"{_key(key)} = {_value(key, value)}"
    yield ""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(f"{where}.{_key(key)}" if where else _key(key), value)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # inf and nan are TOML as well
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(name, item) for item in value)}]"
    if isinstance(value, Mapping):
        inside = (f"{_key(key)} = {_value(key, item)}" for key, item in value.items())
        return f"{{ {', '.join(inside)} }}"
    raise fail(name, type(value).__name__, "cannot be written as TOML", "use numbers and text")


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if plain else json.dumps(key, ensure_ascii=False)
