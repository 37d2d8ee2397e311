"""Options for the places of a plan, such as `--point SAM`."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing
from steppe.utils import validation

_POINTS = ("Here", "SAM", "SAT", "SATMomentum")
_ADJACENCIES = ("add-remove", "zero-out", "replace-one")
# The radius does not change the cost of a run.
_ANY_RADIUS = 0.05


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the places that change the cost of a run."""
    parser.add_argument(
        "--point",
        choices=_POINTS,
        default="Here",
        help="at which weights the gradient is taken; SAM queries each batch twice (default: Here)",
    )
    parser.add_argument(
        "--noise",
        metavar="NAME:KEY=VALUE,…",
        help="a noise schedule, such as StepSchedule:drop=0.6,every=290",
    )
    parser.add_argument(
        "--clip",
        metavar="NAME:KEY=VALUE,…",
        help="how gradients are clipped, such as Quantile:count_share=0.01",
    )
    parser.add_argument(
        "--cap",
        type=parsing.whole_number,
        metavar="B",
        help="the largest batch size; needs --adjacency zero-out",
    )
    parser.add_argument(
        "--adjacency",
        choices=_ADJACENCIES,
        default=_ADJACENCIES[0],
        help="the neighbouring relation (default: add-remove)",
    )


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Plan` from these options."""
    from steppe import points
    from steppe.sampling import CappedPoisson

    choices: dict[str, Any] = {"adjacency": arguments.adjacency}
    if arguments.point != "Here":
        choices["point"] = getattr(points, arguments.point)(_ANY_RADIUS)
    for option in ("clip", "noise"):
        if (text := getattr(arguments, option)) is not None:
            from steppe.training import place

            name, constants = parsing.named(text)
            choices[option] = place(f"--{option}", {"name": name, **constants})
    if arguments.cap is not None:
        with validation.called({"CappedPoisson.cap": "--cap"}):
            choices["sampling"] = CappedPoisson(arguments.cap)
    return choices
