"""Plans whose records take part in known steps: what noise must hide there, and what it costs."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from steppe.accounting import Participation, Segment, Segments
from steppe.noise import Correlated
from steppe.plan.checks import known_population
from steppe.sampling import CyclicPoisson

if TYPE_CHECKING:
    from steppe.plan.plan import Plan

# Marks over a run at which the cost of its beginning is known; between them the next one counts.
_MARKS = 128


def hidden_turns(plan: Plan) -> Participation:
    """The turns of a record that one Gaussian answer must hide.

    With `CyclicPoisson` these are single ones, and the answers compose.
    """
    if isinstance(plan.sampling, CyclicPoisson):
        return Participation()
    population = known_population(plan.population)
    found = plan.sampling.turns(population, plan.batch_size, plan.total_steps)
    return Participation() if found is None else found


def is_one_answer(plan: Plan) -> bool:
    """Whether the run is one Gaussian answer, and not one for each step."""
    return isinstance(plan.noise, Correlated) and not isinstance(plan.sampling, CyclicPoisson)


def whole_run(plan: Plan, sigma: float) -> Segments:
    """The run as the one Gaussian answer that it is."""
    return (Segment(rate=1.0, noise_multiplier=sigma / math.sqrt(plan.queries), steps=1),)


def first_steps(plan: Plan, sigma: float, steps: int) -> Segments:
    """The beginning of a run that is one Gaussian answer, in parts that add up.

    Gaussian answers at noise σᵢ cost as much as one at σ with 1/σ² = Σ 1/σᵢ². The first steps show
    C G + Z in its first rows alone, so a part is what one stretch of the run adds to the squared
    sensitivity. Costs of longer beginnings contain those of shorter ones, as a ledger needs it.
    """
    if steps == 0 or not isinstance(plan.noise, Correlated):
        return ()
    accounted = sigma / math.sqrt(plan.queries)
    found = []
    for mark, share in _shares(plan.noise, plan.total_steps, hidden_turns(plan)):
        if share > 0:
            found.append(Segment(rate=1.0, noise_multiplier=accounted / math.sqrt(share), steps=1))
        if mark >= steps:
            break
    return tuple(found)


@lru_cache(maxsize=64)
def _shares(noise: Correlated, steps: int, turns: Participation) -> tuple[tuple[int, float], ...]:
    """(last step, share of the squared sensitivity) of each stretch between two marks."""
    growth, found, before = noise.growth(steps, turns), [], 0.0
    marks = sorted({-(-steps * number // _MARKS) for number in range(1, _MARKS + 1)})
    for mark in marks:
        found.append((mark, (growth[mark - 1] - before) / growth[-1]))
        before = growth[mark - 1]
    return tuple(found)
