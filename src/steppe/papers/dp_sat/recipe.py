"""The paper's recipe as a table of constants, and the plan that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from steppe.papers.experiment import Constants
from steppe.papers.pictures import Fitted, NoNoise, fit, load
from steppe.papers.plans import plan_of
from steppe.plan import Plan
from steppe.points import SAM, SAT, Here, Point, SATMomentum
from steppe.utils import validation

PAPER = "Park et al., Differentially Private Sharpness-Aware Training, 2023"
RECIPE: Constants = {
    "model": "cnn-tanh-26k",
    "batch": 2000,
    "epochs": 40,
    "rate": 2.0,
    "momentum": 0.9,
    "clip": 0.1,
    "delta": 1e-5,
    "population": 60_000,
}


def method(data: str, epsilon: float, point: str = "Here", **more: Any) -> Constants:
    """The paper's constants with a data set, a budget and a point."""
    return {**RECIPE, "data": data, "epsilon": epsilon, "point": point, **more}


def point(constants: Constants) -> Point:
    """Where the gradient is taken."""
    choices: dict[str, Callable[[float], Point]]
    choices = {"SAM": SAM, "SAT": SAT, "SATMomentum": SATMomentum}
    name = constants["point"]
    return Here() if name == "Here" else choices[name](constants["radius"])


# In place of its own account, DP-SAM pays for its second query of a batch in one of two ways.
HALF_THE_BUDGET = "two runs at half the budget"  # the noise of a run at (ε/2, δ/2)
FEWER_STEPS = "0.24 of the steps"  # with the noise of DP-SGD; what the paper did


def plan(constants: Constants) -> Plan:
    """The public constants of a run.

    Two answers about one batch are one answer at σ/√2: that is the plan's own account. The paper
    says that DP-SAM costs (2ε, 2δ). To stay at (ε, δ) it names 2.06 times the noise of DP-SGD, or
    0.24 times its steps, and takes the steps: 7.07 of 30 epochs on CIFAR-10, 9.6 of 40 here.
    """
    once = plan_of(constants, l2=constants.get("l2", 0.0))
    asked = replace(once, point=point(constants))
    account = constants.get("account")
    if account is None:
        return asked
    if account == FEWER_STEPS:
        steps = round(0.24 * once.total_steps)
        return replace(asked, epsilon=None, noise_multiplier=once.sigma, epochs=None, steps=steps)
    validation.one_of("account", account, [HALF_THE_BUDGET, FEWER_STEPS])
    half = replace(once, epsilon=constants["epsilon"] / 2, delta=constants["delta"] / 2)
    return replace(asked, epsilon=None, noise_multiplier=half.sigma)


def train(constants: Constants, seed: int, planned: Plan | None = None, **more: Any) -> Fitted:
    """One run of the recipe, or of another plan with its constants; `more` goes to `fit`.

    With "noise": "none" among the constants the noise is left out: a curve of training that is not
    private, and is stored with no ε.
    """
    if "noise" in constants:
        validation.one_of("noise", constants["noise"], ["none"])
        more["source"] = NoNoise(seed)
    return fit(
        load(constants["data"]),
        constants["model"],
        plan(constants) if planned is None else planned,
        seed,
        rate=constants["rate"],
        optimizer=constants.get("optimizer", "SGD"),
        momentum=constants["momentum"],
        **more,
    )
