"""Computes one of ε, noise, length, batch and population from the other four."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from steppe.errors import ConfigurationError, PrivacyWarning
from steppe.plan import Plan
from steppe.utils import validation

# The range of the search for a length, a batch or a population.
_MOST_STEPS, _MOST_RECORDS = 10**8, 10**12
_STRIDE = 8
# The relative precision of large results; small ones are exact.
_CLOSE = 1 + 1e-4


def complete(known: dict[str, Any], missing: str) -> Plan:
    """The plan in which the missing constant takes its best value.

    Args:
        known: arguments of `Plan`; what is missing is left out.
        missing: `epsilon` or `noise_multiplier`, which the plan computes; `steps` or `batch_size`,
            as large as the budget allows; `population`, as small as it allows.

    Returns:
        A plan with a noise multiplier.

    Guarantees:
        If a budget is given, the plan's ε was computed and does not exceed it.

    Examples:
        >>> known = dict(delta=1e-5, population=10_000, batch_size=256, noise_multiplier=0.96)
        >>> complete(known | dict(epsilon=2.0), "steps").total_steps
        99
    """
    if missing == "epsilon":
        return Plan(**known)
    if missing == "noise_multiplier":
        return Plan(**known).calibrate()
    budget = validation.positive("epsilon", known["epsilon"], "a common range is 0.5 to 8")
    rest = {name: value for name, value in known.items() if name != "epsilon"}

    @cache
    def cost(value: int) -> float:
        with warnings.catch_warnings():
            # Candidates of the search may give warnings.
            warnings.simplefilter("ignore", PrivacyWarning)
            return Plan(**{**rest, missing: value}).epsilon_spent()

    if missing == "steps":
        found = _largest(cost, budget, missing, _MOST_STEPS)
    elif missing == "batch_size":
        population = validation.positive_integer("population", rest["population"])
        found = _largest(cost, budget, missing, population)
    else:
        batch = validation.positive("batch_size", rest["batch_size"])
        epochs = validation.positive("epochs", rest.get("epochs", 1.0))
        # More records mean more steps if the length is given in epochs.
        most = _MOST_STEPS * batch / epochs if "epochs" in rest else _MOST_RECORDS
        found = _smallest(cost, budget, missing, math.ceil(batch), math.floor(most))
    return Plan(**{**rest, missing: found})


def _largest(cost: Callable[[int], float], budget: float, name: str, most: int) -> int:
    """The largest number up to `most` within the budget, where more costs more."""
    affordable = partial(_affordable, cost, budget)
    bad, good = _accountable(cost, most)
    if bad and not affordable(good):  # a number between them may cost less
        good = _last_that_does(partial(_affordable, cost, math.inf), good, bad)
    if (least := cost(good)) > budget:
        raise _exceeded(budget, name, good, least)
    while good < most:
        ahead = min(good * _STRIDE, most)
        if not affordable(ahead):
            return _last_that_does(affordable, good, ahead)
        good = ahead
    return good


def _accountable(cost: Callable[[int], float], most: int) -> tuple[int, int]:
    """Two numbers from 0 to `most`: one whose cost cannot be computed, and one whose cost can.

    For a small batch it may not be possible: with a length in epochs it means more steps than can
    be accounted, or more than a small δ allows.
    """
    bad, good = 0, 1
    try:
        cost(good)
    except ConfigurationError:
        while not _affordable(cost, math.inf, good):
            if good == most:
                raise  # the error is not about the size
            bad, good = good, min(good * _STRIDE, most)
    return bad, good


def _smallest(cost: Callable[[int], float], budget: float, name: str, least: int, most: int) -> int:
    """The smallest number from `least` to `most` within the budget, where more costs less."""
    affordable = partial(_affordable, cost, budget)
    bad = least
    if affordable(bad):
        return bad
    while bad < most:
        ahead = min(bad * _STRIDE, most)
        if affordable(ahead):
            return _last_that_does(affordable, ahead, bad)
        bad = ahead
    raise _exceeded(budget, name, most, cost(most))


def _last_that_does(does: Callable[[int], bool], good: int, bad: int) -> int:
    """The last number that passes the test, between one that does and one that does not."""
    while abs(good - bad) > 1 and max(good / bad, bad / good) > _CLOSE:
        middle = math.isqrt(good * bad)
        if middle in (good, bad):
            middle = (good + bad) // 2
        if does(middle):
            good = middle
        else:
            bad = middle
    return good


def _exceeded(budget: float, name: str, value: int, least: float) -> ConfigurationError:
    return validation.fail(
        "epsilon",
        budget,
        f"is exceeded even with {name}={value}, which costs {least:.4g}",
        "use a larger epsilon, or more noise",
    )


def _affordable(cost: Callable[[int], float], budget: float, value: int) -> bool:
    try:
        return cost(value) <= budget
    except ConfigurationError:  # the run is too long to be accounted, or the batch too large
        return False
