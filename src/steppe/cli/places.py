"""The choices of a plan's places as options, such as `--point SAM`."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

from steppe import _validate

_POINTS = ("Here", "SAM", "SAT", "SATMomentum")
_SCHEDULES = ("ExponentialSchedule", "TimeSchedule", "StepSchedule", "PolynomialSchedule")
# PerLayer is accounted as Flat is, and its budget is a table that an option cannot hold.
_CLIPS = ("Flat", "Quantile", "Automatic", "GEP")
_ADJACENCIES = ("add-remove", "zero-out", "replace-one")
# How far a point climbs does not change what the run costs.
_ANY_RADIUS = 0.05


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the places that change what a run costs."""
    parser.add_argument(
        "--point",
        choices=_POINTS,
        default="Here",
        help="where the gradient is taken; SAM asks each batch twice (default: Here)",
    )
    parser.add_argument(
        "--schedule",
        metavar="NAME:KEY=VALUE,…",
        help=f"noise that falls during the run: {', '.join(_SCHEDULES)}",
    )
    parser.add_argument(
        "--clip",
        metavar="NAME:KEY=VALUE,…",
        help=f"how a record is bounded, which shares the noise out: {', '.join(_CLIPS)}",
    )
    parser.add_argument(
        "--cap",
        type=int,
        metavar="B",
        help="the most records in a step; needs --adjacency zero-out",
    )
    parser.add_argument(
        "--adjacency",
        choices=_ADJACENCIES,
        default=_ADJACENCIES[0],
        help="which data sets are neighbours (default: add-remove)",
    )


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Plan` that these options stand for."""
    from steppe import points
    from steppe.sampling import CappedPoisson

    choices: dict[str, Any] = {"adjacency": arguments.adjacency}
    if arguments.point != "Here":
        choices["point"] = getattr(points, arguments.point)(_ANY_RADIUS)
    if arguments.schedule is not None:
        choices["noise"] = schedule(arguments.schedule)
    if arguments.clip is not None:
        choices["clip"] = clip(arguments.clip)
    if arguments.cap is not None:
        choices["sampling"] = CappedPoisson(arguments.cap)
    return choices


def schedule(text: str) -> Any:
    """A noise schedule from `NAME:KEY=VALUE,…`.

    >>> schedule("StepSchedule:drop=0.6,every=290")
    StepSchedule(grid=False, every=290, drop=0.6)
    """
    from steppe import noise

    return _built("schedule", text, noise, _SCHEDULES)


def clip(text: str) -> Any:
    """A clip from `NAME:KEY=VALUE,…`.

    >>> clip("Quantile:count_share=0.75").sensitivity
    2.0
    """
    from steppe import clipping

    return _built("clip", text, clipping, _CLIPS)


def _built(option: str, text: str, room: ModuleType, names: tuple[str, ...]) -> Any:
    import inspect  # takes as long to import as the rest of the command line

    name, _, rest = text.partition(":")
    kind = getattr(room, _validate.one_of(option, name, names))
    known = inspect.signature(kind).parameters
    values = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in known:
            listed = ", ".join(known)
            raise _validate.fail(key, value, f"is no option of {name}", f"use {listed}")
        values[key] = _number(f"{name}.{key}", value)
    required = [key for key, about in known.items() if about.default is about.empty]
    for key in required:
        if key not in values:
            raise _validate.fail(
                option, text, f"{name} needs {key}", f"write {name}:{'=…,'.join(required)}=…"
            )
    return kind(**values)


def _number(name: str, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise _validate.fail(name, text, "must be a number", "write it like 0.01") from None
