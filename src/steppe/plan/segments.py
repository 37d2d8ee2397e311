"""The run of a plan in the accountant's terms: how many steps, at which rates and noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from steppe.accounting import Segment, Segments
from steppe.plan.checks import known_population
from steppe.plan.turns import first_steps, is_one_answer
from steppe.utils import validation

if TYPE_CHECKING:
    from steppe.plan.plan import Plan


def schedule_of(plan: Plan) -> tuple[tuple[int, float], ...]:
    """The noise over the run, as `Plan.schedule` says it, which must cover every step."""
    levels = tuple(
        (
            validation.positive_integer("noise schedule's steps", count),
            validation.positive("noise schedule's factor", factor),
        )
        for count, factor in plan.noise.relative(plan.total_steps)
    )
    if sum(count for count, _ in levels) != plan.total_steps:
        raise validation.fail(
            "noise",
            plan.noise,
            f"its schedule does not cover the {plan.total_steps} steps of the plan",
            "use a schedule of that length",
        )
    return levels


def segments_of(
    plan: Plan, sigma: float, steps: int, rate_of: Callable[[tuple[float, ...]], float]
) -> Segments:
    """The first steps of a plan, as the accountant takes them.

    Args:
        plan: with its population known.
        sigma: the noise multiplier.
        steps: how many.
        rate_of: chooses a rate from those of the groups of records.
    """
    if is_one_answer(plan):
        return first_steps(plan, sigma, steps)
    # k Gaussian answers at σ about one batch reveal as much as one answer at σ/√k.
    accounted = sigma / math.sqrt(plan.queries)
    cap, population, start = plan.cap, known_population(plan.population), 0
    found = []
    for count, factor in plan.schedule:
        stop = min(start + count, steps)
        if stop <= start:
            break
        found += [
            Segment(
                rate=rate_of(rates),
                noise_multiplier=accounted * factor,
                steps=times,
                cap=cap,
                population=population if cap is not None else None,
            )
            for times, rates in plan.sampling.rates(population, plan.batch_size, start, stop)
        ]
        start = stop
    return tuple(found)


def counted(plan: Plan, steps_done: int | None) -> int:
    """How many of the plan's steps are meant: those done, or all of them."""
    if steps_done is None:
        return plan.total_steps
    if steps_done != 0:
        validation.positive_integer("steps_done", steps_done, "count the steps taken so far")
    if steps_done > plan.total_steps:
        raise validation.fail(
            "steps_done",
            steps_done,
            f"exceeds the {plan.total_steps} steps of the plan",
            "stop there, or plan a longer run before it starts",
        )
    return steps_done
