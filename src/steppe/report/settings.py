"""Nested settings as a table, without what should stay on the machine that trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from steppe.report.chart import table
from steppe.report.markup import Markup

# Folders name people and machines; a page that is passed on shows the last part of a path only.
_START = r"(?:file://)?(?:~|\.\.|[A-Za-z]:)?[/\\]"
_WHOLE = re.compile(rf"{_START}.*[/\\](?=[^/\\])", re.DOTALL)
_QUOTED = re.compile(rf"(?<=['\"]){_START}[^'\"]*[/\\](?=[^'\"/\\])")
_BARE = re.compile(rf"(?<![\w.:…/\\-]){_START}(?:[^/\\\s]+[/\\])+(?=[^/\\\s])")
# Words in keys whose values should not be published.
_SECRET = re.compile(
    r"(?:^|[_-])(?:passw(?:or)?d|secret|token|credentials?|(?:api|secret|private|access)[_-]?key)$",
    re.IGNORECASE,
)


def settings_table(title: str, values: Mapping[str, Any]) -> Markup:
    """Every setting in a row, nested ones by their dotted name.

    Args:
        title: of the table.
        values: as read from JSON.
    """
    return table(["setting", "value"], [list(row) for row in flattened(values)], caption=title)


def flattened(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values in words.

    >>> list(flattened({"a": {"b": None, "c": [1, 2]}, "path": "/home/ann/data/x.npz"}))
    [('a.b', 'none'), ('a.c', '1, 2'), ('path', '…/x.npz')]
    """
    for key, value in values.items():
        name = f"{before}{key}"
        if _SECRET.search(str(key)):
            yield name, "left out"
        elif isinstance(value, Mapping) and value:
            yield from flattened(value, f"{name}.")
        else:
            yield name, _words(value)


def without_folders(text: str) -> str:
    """The text with every path cut to its last part.

    >>> without_folders("read '/home/ann/my data/x.npz' and /tmp/y.csv, or runs/a")
    "read '…/x.npz' and …/y.csv, or runs/a"
    """
    return _BARE.sub("…/", _QUOTED.sub("…/", text))


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        named = dict(value)
        call = named.pop("name", named.pop("kind", ""))
        entries = (
            f"{key}={'left out' if _SECRET.search(str(key)) else _words(entry)}"
            for key, entry in named.items()
        )
        return f"{call}({', '.join(entries)})"
    if isinstance(value, list):
        entries = (f"[{_words(e)}]" if isinstance(e, list) else _words(e) for e in value)
        return ", ".join(entries)
    if isinstance(value, str):
        return (
            f"…/{value[whole.end() :]}"
            if (whole := _WHOLE.match(value))
            else without_folders(value)
        )
    return repr(value)
