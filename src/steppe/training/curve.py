"""ε after every step of a plan, from a few values that are computed once."""

from __future__ import annotations

import math
from bisect import bisect_left

from steppe.plan import Plan

# ε grows about with the root of the number of steps, so marks are even in the root.
_MARKS = 10


class EpsilonCurve:
    """Looks up what the first steps of a plan cost; a lookup takes about a microsecond.

    Between two marks the value is interpolated in the root of the number of steps. There ε is
    convex for runs of more than a few steps, so the chord lies above it; before the first mark the
    mark's own value stands. The end is the plan's exact value.

    Args:
        plan: the plan, with its population.

    Examples:
        >>> plan = Plan(delta=1e-5, noise_multiplier=1.0, batch_size=50, steps=90, population=1000)
        >>> curve = EpsilonCurve(plan)
        >>> curve(0), curve(90) == plan.epsilon_spent()
        (0.0, True)
        >>> plan.epsilon_spent(50) <= curve(50) < 1.02 * plan.epsilon_spent(50)
        True
    """

    def __init__(self, plan: Plan) -> None:
        total = plan.total_steps
        self._steps = sorted({math.ceil(total * (i / _MARKS) ** 2) for i in range(1, _MARKS + 1)})
        self._values = [plan.epsilon_spent(step) for step in self._steps]

    def __call__(self, step: int) -> float:
        if step <= 0:
            return 0.0
        place = bisect_left(self._steps, step)
        if place >= len(self._steps):
            return self._values[-1]
        if place == 0 or self._steps[place] == step:
            return self._values[place]
        low, high = self._steps[place - 1], self._steps[place]
        share = (math.sqrt(step) - math.sqrt(low)) / (math.sqrt(high) - math.sqrt(low))
        return self._values[place - 1] + share * (self._values[place] - self._values[place - 1])
