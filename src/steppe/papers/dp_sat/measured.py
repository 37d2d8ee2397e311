"""One run of the recipe, tested at its last weights and at their moving average.

The quantile clip of `steppe.papers.combinations` is here too, so that tables that ask for the same
constants share their runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steppe.averaging import EMA
from steppe.clipping import Quantile
from steppe.papers.dp_sat import recipe
from steppe.papers.experiment import Constants
from steppe.papers.pictures import accuracy, load
from steppe.plan import Plan
from steppe.private import Private


def compared(data: str, epsilon: float, point: str = "Here", **more: Any) -> Constants:
    """The constants of `recipe.method` with those of the average."""
    return {**recipe.method(data, epsilon, point, **more), "average": 0.99}


def methods(data: str, epsilon: float) -> dict[str, Constants]:
    """The methods that the paper compares; DP-SAM also with two other ways to pay for it."""
    return {
        "DP-SGD": compared(data, epsilon),
        "DP-SAT": compared(data, epsilon, "SAT", radius=0.03),
        "DP-SAT-Momentum": compared(data, epsilon, "SATMomentum", radius=0.1),
        "DP-SAM, tight account": compared(data, epsilon, "SAM", radius=0.03),
        "DP-SAM, the paper's steps": compared(
            data, epsilon, "SAM", radius=0.03, account=recipe.FEWER_STEPS
        ),
        "DP-SAM, noise of half the budget": compared(
            data, epsilon, "SAM", radius=0.03, account=recipe.HALF_THE_BUDGET
        ),
    }


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train once; test the last weights and their moving average."""
    averages: list[EMA] = []
    bounds: list[float] = []

    def after_step(private: Private) -> None:
        if not averages:
            averages.append(EMA(private.model, decay=constants["average"]))
        averages[0].update(private.model)
        bound = private.engine.clipper.state().get("bound")
        if bound is not None:
            bounds.append(float(bound))
            _keep_step_length(private, constants, bounds[-1])

    fitted = recipe.train(constants, seed, plan(constants), after_step=after_step)
    with averages[0].applied(fitted.model):
        averaged = accuracy(fitted.model, load(constants["data"]).test)
    spacing = max(1, len(bounds) // 20)
    return {**fitted.measured(), "averaged": averaged, "clips": bounds[::spacing]}


def plan(constants: Constants) -> Plan:
    """The plan of the recipe, with a quantile for the clip where one is asked for."""
    fixed = recipe.plan(constants)
    if "quantile" not in constants:
        return fixed
    # The count gets the noise of a twentieth of the batch, as in the adaptive-clipping paper.
    share = Quantile.share_for(fixed.sigma, constants["batch"] / 20)
    moving = Quantile(target=constants["quantile"], start=constants["clip"], count_share=share)
    return replace(fixed, clip=moving)


def _keep_step_length(private: Private, constants: Constants, bound: float) -> None:
    """Let the learning rate go with 1/C, so that a moving clip decides who is cut and no more.

    With a fixed rate, gradients and noise both grow with C, and the result tells about the rate.
    Momentum keeps gradients of earlier bounds, so that steps are longer while C falls and shorter
    while it grows: by 1/(1 − 0.9 exp(d)) over 10 for a fall of d in log C at each step.
    """
    for group in private.optimizer.param_groups:
        group["lr"] = constants["rate"] * constants["clip"] / bound
