"""Renames arguments in errors to the options that were typed."""

from __future__ import annotations

from steppe.errors import SteppeError

# Arguments and keys whose option has another name.
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
    "data": (
        *("classes", "target", "test", "holdout", "columns", "bounds", "target_bounds"),
        *("categories", "missing"),
    ),
    "train": ("run", "ledger", "ledger_epsilon", "isolation", "loss", "ceiling"),
    "model": ("mirror",),
    "": ("data", "model"),
}
_NAMES = {
    **_OTHER_NAMES,
    **{name: name for names in _SAME_NAME.values() for name in names},
    **{f"{table}.{name}": name for table, names in _SAME_NAME.items() for name in names if table},
}
# Arguments that are switches on the command line.
_SWITCHES = {"numbers": "--regression", "checks": "--no-checks"}
_OPTIONS = {name: f"--{option.replace('_', '-')}" for name, option in _NAMES.items()}


def name_options(error: SteppeError) -> None:
    """Rename Python's arguments and a file's keys in an error to options.

    Examples:
        >>> way = 'missing="middle"'
        >>> error = SteppeError.about("test", "a.csv", "has gaps", f"set {way}", (way,))
        >>> name_options(error)
        >>> print(error)
        --test='a.csv': has gaps; set --missing middle.
    """
    error.rename(_OPTIONS)
    error.remedy = _with_options(error.remedy, error.mentions)
    name_other_ways(error)


def name_other_ways(error: SteppeError) -> None:
    """Name options in the alternatives of an error, such as `--isolation each`."""
    error.otherwise = _with_options(error.otherwise, error.mentions)


def _with_options(text: str, mentions: tuple[str, ...]) -> str:
    for mention in mentions:
        name, _, value = mention.replace('"', "").partition("=")
        option = _SWITCHES.get(name) or f"{_OPTIONS[name]} {value}".rstrip()
        text = text.replace(mention, option)
    return text
