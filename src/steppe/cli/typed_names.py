"""Messages about options, by the names that were typed."""

from __future__ import annotations

import re

from steppe.utils.validation import renamed

# Arguments and keys that an option of another name stands for; the rest are called as it is.
_OTHER_NAMES = {
    "place": "data",
    "data.place": "data",
    "data.name": "data",
    "data.called": "data",
    "name": "model",
    "model.name": "model",
    "model.factory": "model",
}
_SAME_NAME = {
    "plan": ("epsilon", "delta"),
    "data": ("classes", "target", "test", "columns", "bounds", "categories", "missing"),
    "train": ("run", "ledger", "isolation"),
    "": ("data", "model"),
}
_NAMES = {
    **_OTHER_NAMES,
    **{name: name for names in _SAME_NAME.values() for name in names},
    **{f"{table}.{name}": name for table, names in _SAME_NAME.items() for name in names if table},
}
_OPTIONS = {name: f"--{option}" for name, option in _NAMES.items()}
# What only Python can say.
_NO_OPTION = "numbers=True, or in a TOML file"
_NAME = "|".join(re.escape(name) for name in sorted(_OPTIONS, key=len, reverse=True))
_OTHERWISE = " Otherwise: "
_WAYS_ON = re.compile(r'\bisolation="(\w+)"')
_IN_A_REMEDY = re.compile(rf"""(?<![\w.-])({_NAME})=(?:["'](\w+)["'])?""")


def as_typed(message: str) -> str:
    """A message `name=value: rule; remedy.` with options in place of Python's arguments.

    Only the name and the remedy change: the value may be a path with any text in it.

    Examples:
        >>> as_typed("target=None: must name the column of labels; add target=.")
        '--target=None: must name the column of labels; add --target.'
        >>> as_typed('path="a; target=.csv": has no value; fill it in, or set missing="middle".')
        'path="a; target=.csv": has no value; fill it in, or set --missing middle.'
    """
    message, otherwise, ways = with_ways_on(message).partition(_OTHERWISE)
    rule, semicolon, remedy = renamed(_OPTIONS, message).rpartition("; ")
    remedy = remedy.replace(_NO_OPTION, "write a TOML file with")
    return rule + semicolon + _IN_A_REMEDY.sub(_with_value, remedy) + otherwise + ways


def with_ways_on(message: str) -> str:
    """A message with `--isolation` in place of Python's argument, where it ends with other ways.

    Examples:
        >>> with_ways_on('layer=1: mixes. Otherwise: isolation="each" takes records one by one.')
        'layer=1: mixes. Otherwise: --isolation each takes records one by one.'
    """
    refused, otherwise, ways = message.partition(_OTHERWISE)
    return refused + otherwise + _WAYS_ON.sub(r"--isolation \1", ways)


def _with_value(found: re.Match[str]) -> str:
    option = _OPTIONS[found[1]]
    return option if found[2] is None else f"{option} {found[2]}"
