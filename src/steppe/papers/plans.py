"""From a setting's table of constants to the plan of its run."""

from __future__ import annotations

from typing import Any

from steppe.clipping import Flat
from steppe.papers.experiment import Constants
from steppe.plan import Plan


def plan_of(constants: Constants, **places: Any) -> Plan:
    """The plan of a setting.

    Args:
        constants: `delta`, `population`, `batch`, `clip`, and of each pair one: `epsilon` or
            `sigma`, `epochs` or `steps`.
        places: further arguments of the plan, such as its sampling.

    Examples:
        >>> table = {"epsilon": 1.0, "delta": 1e-5, "population": 900, "batch": 30, "clip": 0.5}
        >>> plan_of({**table, "epochs": 2}).total_steps
        60
    """
    return Plan(
        epsilon=constants.get("epsilon"),
        noise_multiplier=constants.get("sigma"),
        delta=constants["delta"],
        population=constants["population"],
        batch_size=constants["batch"],
        epochs=constants.get("epochs"),
        steps=constants.get("steps"),
        clip=Flat(constants["clip"]),
        **places,
    )
