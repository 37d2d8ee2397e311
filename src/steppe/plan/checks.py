"""What a plan must satisfy before any budget is spent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steppe.accounting import ADJACENCIES, LARGEST_NOISE, SMALLEST_NOISE, check_delta, check_steps
from steppe.errors import PrivacyWarning
from steppe.gradients import strength
from steppe.plan.combinations import check_noise_and_sampling
from steppe.plan.places import PLACES, check_place
from steppe.sampling import CappedPoisson
from steppe.utils import validation
from steppe.utils.name_prefixes import Pairs, pairs

if TYPE_CHECKING:
    from steppe.plan.plan import Plan

# Counts beyond this are not whole numbers any more once they meet a float.
_LARGEST_COUNT = 2**53
# The noise is cut off this many standard deviations out, where its generator runs out of bits.
_NOISE_REACH = 9.4
# The part of δ that the cut may cost. What is left over pays for shifts that are spread over many
# coordinates: they add √d · φ(9.4) · shift, with d = 1e9 some 1e-15 a step.
_CUT_SHARE = 1e-3


def settle(plan: Plan) -> None:
    """Check every constant of a plan, while it is being made, and store its plain number."""
    check_delta(plan.delta)
    _store(plan, "delta", float(plan.delta))
    _store(plan, "batch_size", validation.positive("batch_size", plan.batch_size))
    _settle_noise(plan)
    for name, kind, example in PLACES:
        check_place(name, getattr(plan, name), kind, example)
    _settle_length(plan)
    validation.positive("clip.sensitivity", plan.clip.sensitivity)
    validation.positive_integer("point.queries", plan.point.queries)
    _store(plan, "l2", _settled_l2(plan.l2))
    _store(plan, "views", validation.positive_integer("views", plan.views))
    _check_adjacency(plan)
    check_noise_and_sampling(plan)
    # A line of its own could pass for another item of the statement.
    if not isinstance(plan.unit, str) or not plan.unit.strip() or not plan.unit.isprintable():
        raise validation.fail("unit", plan.unit, "must be a word", "use 'record' or 'user'")
    validation.one_of("population_source", plan.population_source, ("declared", "data"))
    if plan.population is not None:
        _settle_population(plan, count("population", plan.population))
    elif plan.steps is not None:
        _levels(plan, plan.noise_multiplier or 1.0)


def check_noise(plan: Plan, sigma: float) -> None:
    """Refuse a level of the noise that cannot be drawn as it is accounted.

    Args:
        plan: the plan, with its population.
        sigma: the noise multiplier it is to use.
    """
    levels = _levels(plan, sigma)
    participations = plan.queries * max(
        sum(part.steps * part.rate for part in run) for run in plan.segments_at(sigma)
    )
    check_noise_tail(min(levels), participations, plan.delta, plan.adjacency, plan.epsilon)


def _levels(plan: Plan, sigma: float) -> list[float]:
    """Every noise multiplier of the schedule, each of which must be one."""
    return [noise_multiplier("noise_multiplier", sigma * factor) for _, factor in plan.schedule]


def known_population(population: int | None) -> int:
    """The population, where something depends on it."""
    if population is None:
        raise validation.missing(
            "population",
            "declare it, or call for_population(len(data))",
            "is required for the sampling rate",
        )
    return population


def count(name: str, value: Any) -> int:
    """A whole number above zero that floats can hold."""
    number = validation.positive_integer(name, value)
    if number > _LARGEST_COUNT:
        raise validation.fail(name, value, "must be at most 2⁵³")
    return number


def noise_multiplier(name: str, value: Any) -> float:
    """A noise multiplier inside the range that can be drawn and accounted."""
    remedy = "without noise nothing is private; a common range is 0.5 to 5"
    sigma = validation.positive(name, value, remedy)
    if not SMALLEST_NOISE <= sigma <= LARGEST_NOISE:
        rule = f"must lie between {SMALLEST_NOISE:g} and {LARGEST_NOISE:g}"
        raise validation.fail(name, value, rule, "a common range is 0.5 to 5")
    return sigma


def _settled_l2(l2: Any) -> float | Pairs:
    """One λ, or the pairs of a mapping from name prefixes to λ."""
    if isinstance(l2, Mapping | tuple | list):
        return pairs("l2", l2, strength)
    return strength("l2", l2)


def _store(plan: Plan, name: str, value: Any) -> None:
    object.__setattr__(plan, name, value)


def _settle_noise(plan: Plan) -> None:
    validation.exactly_one(
        "epsilon calibrates the noise, noise_multiplier fixes it",
        epsilon=plan.epsilon,
        noise_multiplier=plan.noise_multiplier,
    )
    if plan.epsilon is not None:
        hint = "a common range is 0.5 to 8"
        _store(plan, "epsilon", validation.positive("epsilon", plan.epsilon, hint))
    if plan.noise_multiplier is not None:
        sigma = noise_multiplier("noise_multiplier", plan.noise_multiplier)
        _store(plan, "noise_multiplier", sigma)


def _settle_length(plan: Plan) -> None:
    if plan.sampling.decides_length and plan.epochs is not None:
        rule = f"cannot be given together with {plan.sampling}, which has its own"
        raise validation.fail("epochs", plan.epochs, rule, "leave them out of the plan")
    if plan.sampling.decides_length and plan.steps is None:
        return
    validation.exactly_one(
        "epochs are turned into floor(epochs * population / batch_size) steps",
        steps=plan.steps,
        epochs=plan.epochs,
    )
    if plan.steps is not None:
        _store(plan, "steps", count("steps", plan.steps))
    if plan.epochs is not None:
        _store(plan, "epochs", validation.positive("epochs", plan.epochs))


def _check_adjacency(plan: Plan) -> None:
    validation.one_of("adjacency", plan.adjacency, ADJACENCIES)
    if isinstance(plan.sampling, CappedPoisson) and plan.adjacency != "zero-out":
        raise validation.fail(
            "adjacency",
            plan.adjacency,
            "cannot be used with capped batches, which need a public population",
            "set adjacency='zero-out', or use Poisson()",
        )
    if plan.sampling.public_population and plan.adjacency == "add-remove":
        raise validation.fail(
            "adjacency",
            plan.adjacency,
            f"cannot be used with {type(plan.sampling).__name__}: one record more would move the "
            "others to other batches",
            "set adjacency='zero-out', or use Poisson()",
        )
    if plan.sampling.groups > 1 and plan.adjacency == "replace-one":
        raise validation.fail(
            "adjacency",
            plan.adjacency,
            "cannot be used with groups: the new record may be in another group, with other rates",
            "use 'add-remove' or 'zero-out', or sample by Poisson()",
        )


def _settle_population(plan: Plan, population: int) -> None:
    """Everything that depends on the sampling rate, so that no run ends without its ε."""
    _store(plan, "population", population)
    if plan.batch_size > population:
        raise validation.fail(
            "batch_size",
            plan.batch_size,
            f"must not exceed the population of {population}",
            "use a smaller batch",
        )
    plan.sampling.turns(population, plan.batch_size, plan.total_steps)
    check_noise_and_sampling(plan)
    for run in plan.segments_at(1.0):
        check_steps(run)
        check_delta(plan.delta, run)
    if plan.noise_multiplier is not None:
        check_noise(plan, plan.noise_multiplier)
    if plan.delta * population >= 1:
        warnings.warn(
            f"delta={plan.delta!r}: is not below 1/population={1 / population:.3g}, so "
            f"whole {plan.unit}s may be published as they are; use a smaller delta.",
            PrivacyWarning,
            stacklevel=5,
        )


def check_noise_tail(
    noise_multiplier: float,
    participations: float,
    delta: float,
    adjacency: str,
    epsilon: float | None = None,
) -> None:
    """Refuse noise so small, for its δ, that the end of its range gives a record away.

    Drawn noise ends at some distance where a Gaussian goes on. A record that pushes a sum beyond
    the end is seen to be there, whatever ε says; the chance of that must be a negligible part of δ.

    Args:
        noise_multiplier: the smallest σ of one query.
        participations: expected number of queries that a record takes part in.
        delta: the plan's δ.
        adjacency: `replace-one` moves a sum twice as far as the others.
        epsilon: the budget that the noise was found for; None where the noise was given.
    """
    shift = (2.0 if adjacency == "replace-one" else 1.0) / noise_multiplier
    seen = participations * (_tail(_NOISE_REACH - shift) - _tail(_NOISE_REACH))
    if seen < _CUT_SHARE * delta:
        return
    rule = (
        f"a value beyond the largest noise reveals a record with probability {min(seen, 1.0):.1e}, "
        f"which must be below delta/1000={_CUT_SHARE * delta:.1e}"
    )
    if epsilon is None:
        remedy = "use more noise, a larger delta or fewer steps"
        raise validation.fail("noise_multiplier", noise_multiplier, rule, remedy)
    found = f"allows noise_multiplier={noise_multiplier:.3g}, with which {rule}"
    raise validation.fail("epsilon", epsilon, found, "ask for a smaller epsilon")


def _tail(x: float) -> float:
    """The probability that a standard normal variate exceeds x."""
    return 0.5 * math.erfc(x / math.sqrt(2.0))
