"""Numbers for parts of a model, chosen by the beginning of the weights' names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from steppe.utils import validation

Pairs = tuple[tuple[str, float], ...]
"""(prefix, number) in the order of the prefixes: a mapping that can be frozen and hashed."""

_REMEDY = "write a mapping such as {'features': 1e-4, '': 0.0}"


def pairs(name: str, value: Any, number: Callable[[str, Any], float]) -> Pairs:
    """A mapping from prefixes to numbers, in the one order that its digest is made from.

    Args:
        name: what the mapping is called in errors.
        value: a mapping, or the pairs that an earlier call returned.
        number: checks one value, given its name.

    Examples:
        >>> pairs("l2", {"head": 0, "": 0.5}, validation.non_negative)
        (('', 0.5), ('head', 0.0))
    """
    items = list(value.items() if isinstance(value, Mapping) else _listed(name, value))
    if not items:
        raise validation.fail(name, value, "must name at least one prefix", _REMEDY)
    for prefix, _ in items:
        if not isinstance(prefix, str):
            raise validation.fail(name, prefix, "must have weight names as its keys", _REMEDY)
    found = {prefix: number(f"{name}[{prefix!r}]", item) for prefix, item in items}
    if len(found) < len(items):
        raise validation.fail(name, value, "must name every prefix once", _REMEDY)
    return tuple(sorted(found.items()))


def _listed(name: str, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, tuple | list) and all(
        isinstance(item, tuple | list) and len(item) == 2 for item in value
    ):
        return [(first, second) for first, second in value]
    raise validation.fail(name, value, "must be a mapping from name prefixes to numbers", _REMEDY)


def match(name: str, chosen: Pairs, weights: Iterable[str]) -> dict[str, str | None]:
    """For every weight the longest of the prefixes that its name starts with, or None.

    A prefix covers whole parts of a dotted name: `head` covers `head.bias` and not `header.bias`.
    The empty prefix covers everything.

    Args:
        name: what the mapping is called in errors.
        chosen: the mapping.
        weights: the names of the trained weights.

    Examples:
        >>> match("l2", (("", 0.1), ("head", 0.2)), ["head.bias", "header.bias"])
        {'head.bias': 'head', 'header.bias': ''}
    """
    prefixes = sorted((prefix for prefix, _ in chosen), key=len)
    found: dict[str, str | None] = {
        weight: next((p for p in reversed(prefixes) if covers(p, weight)), None)
        for weight in weights
    }
    idle = [prefix for prefix in prefixes if prefix not in found.values()]
    if idle:
        raise validation.fail(
            name,
            idle[0],
            "must begin the name of a trained weight that no longer prefix covers",
            f"the weights are {', '.join(list(found)[:4])}, …",
        )
    return found


def covers(prefix: str, weight: str) -> bool:
    """Whether a prefix covers a weight's name."""
    return not prefix or weight == prefix or weight.startswith(f"{prefix}.")
