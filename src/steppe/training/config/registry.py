"""Classes by their names in configuration files."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

from steppe import runs
from steppe.runs import build as build
from steppe.runs import check_keys as check_keys
from steppe.runs import keys_of as keys_of
from steppe.runs import name_and_options as name_and_options
from steppe.runs import schedulers as schedulers
from steppe.runs import unknown as unknown


def place(where: str, given: Any) -> Any:
    """A choice for one of the plan's places.

    Args:
        where: `plan.clip`, `plan.point`, `plan.noise` or `plan.sampling`; of an option `--clip`.
        given: a table with the `name` of a class and its arguments, or the name alone.

    Returns:
        The object.

    Examples:
        >>> place("plan.point", {"name": "SAT", "radius": 0.03})
        SAT(radius=0.03)
        >>> place("plan.clip", "Automatic").sensitivity
        1.0
    """
    name, options = name_and_options(where, given)
    kind = where.removeprefix("plan.").removeprefix("--")
    return build(where, _places()[kind], name, options)


def averages() -> dict[str, Any]:
    """The averages that can be named."""
    from steppe import averaging

    names = ("SWA", "EMA", "Window", "PolynomialDecay", "OPA", "OMV", "PowerAverages")
    return {name: getattr(averaging, name) for name in names}


def optimizers() -> dict[str, Any]:
    """Every optimizer of torch that can take private steps, and `DPAdam`."""
    from steppe.updates import DPAdam

    return {**runs.optimizers(), "DPAdam": DPAdam}


def _places() -> dict[str, dict[str, Any]]:
    from steppe import clipping, noise, points, sampling

    def frozen(room: Any, *attributes: str) -> dict[str, Any]:
        return {
            name: kind
            for name, kind in vars(room).items()
            if isinstance(kind, type)
            and is_dataclass(kind)
            and not inspect.isabstract(kind)
            and all(hasattr(kind, attribute) for attribute in attributes)
        }

    return {
        "clip": frozen(clipping, "sensitivity", "begin"),
        "point": frozen(points, "queries", "begin"),
        "noise": frozen(noise, "relative", "begin"),
        "sampling": frozen(sampling, "rates", "begin"),
    }
