"""The places that a plan chooses: what each must be, and a choice in terms of JSON."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from steppe.clipping import Clip
from steppe.noise import Noise
from steppe.points import Point
from steppe.sampling import Sampler
from steppe.utils import validation

# The name of each place, its protocol and a valid choice.
PLACES: tuple[tuple[str, type, str], ...] = (
    ("clip", Clip, "Flat(1.0)"),
    ("noise", Noise, "Gaussian()"),
    ("sampling", Sampler, "Poisson()"),
    ("point", Point, "Here()"),
)


def check_place(name: str, value: Any, kind: type, example: str) -> None:
    """Check that a value follows the place's protocol, is frozen and can be written as JSON.

    Args:
        name: the field of the plan.
        value: the value given.
        kind: the protocol of the place.
        example: a choice that is valid.
    """
    if isinstance(value, type) or not isinstance(value, kind) or not is_dataclass(value):
        raise validation.fail(
            name, value, f"must be a {kind.__name__}", f"use {example}, for example"
        )
    kept: Any = type(value)
    if not kept.__dataclass_params__.frozen:
        raise validation.fail(
            name,
            value,
            "could change after the plan is made",
            f"declare {kept.__name__} with @dataclass(frozen=True)",
        )
    described(name, value)


def described(name: str, place: Any) -> dict[str, Any]:
    """A place by its class and its fields, in terms of JSON.

    Examples:
        >>> from steppe.clipping import Flat
        >>> described("clip", Flat(0.5))
        {'kind': 'Flat', 'bound': 0.5}
    """
    constants = {
        item.name: _plain(f"{name}.{item.name}", getattr(place, item.name))
        for item in fields(place)
    }
    return {"kind": type(place).__name__, **constants}


def _plain(name: str, value: Any) -> Any:
    """A constant as JSON knows it; tuples become lists."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        with suppress(OverflowError):
            if math.isfinite(number := float(value)):
                return number
    if isinstance(value, tuple):
        return [_plain(f"{name}[{index}]", item) for index, item in enumerate(value)]
    raise validation.fail(
        name,
        value,
        "cannot be written into the plan's statement and digest",
        "use finite numbers, booleans, text, None, or tuples of these",
    )
