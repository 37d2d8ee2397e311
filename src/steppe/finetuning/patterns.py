"""Weights and layers of a model by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from steppe.utils import validation
from steppe.utils.name_prefixes import covers

_LISTED = 6


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern covers a name: by whole parts of it from the left, or by wildcards.

    Args:
        pattern: the beginning of a dotted name, such as "blocks.0"; or a pattern with `*`, `?` or
            `[…]` for the whole name, such as "*.norm?.*".
        name: of a weight or a layer.

    Examples:
        >>> matches("head", "head.bias"), matches("head", "header.bias")
        (True, False)
        >>> matches("*.bias", "blocks.0.norm.bias")
        True
    """
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(name, pattern)
    return bool(pattern) and covers(pattern, name)


def chosen(where: str, patterns: Any, names: Iterable[str]) -> list[str]:
    """The names that some pattern covers; a pattern without a name is an error.

    Args:
        where: what the patterns are called in errors.
        patterns: one, or several.
        names: of the model's weights or layers.

    Examples:
        >>> chosen("freeze", "bodi", ["body.weight", "head.weight"])
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: freeze='bodi': matches no name of the model; the names are
        body.weight, head.weight.
    """
    known = list(names)
    found: set[str] = set()
    for pattern in as_patterns(where, patterns):
        covered = {name for name in known if matches(pattern, name)}
        if not covered:
            raise validation.fail(
                where, pattern, "matches no name of the model", f"the names are {listed(known)}"
            )
        found |= covered
    return [name for name in known if name in found]


def as_patterns(where: str, given: Any) -> tuple[str, ...]:
    """One pattern or several as a tuple of texts."""
    found = (given,) if isinstance(given, str) else given
    right = isinstance(found, Sequence) and all(isinstance(one, str) for one in found)
    if not right:
        remedy = 'for example, write ["blocks.0", "*.bias"]'
        raise validation.fail(where, given, "must be patterns of names", remedy)
    return tuple(found)


def listed(names: Sequence[str], most: int = _LISTED) -> str:
    """The first names, and how many more there are.

    Examples:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
