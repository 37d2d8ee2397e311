"""An upper bound on ε after every step of a plan, computed when it is needed."""

from __future__ import annotations

import math
from bisect import bisect_left

from steppe.accounting import checked, epsilon_on_grid, with_few_levels, with_few_rates
from steppe.plan import Plan

# The ratio between the steps of two successive marks. ε grows about with the root of the number of
# steps, so the bound is at most about 7 % too high, and more if the noise decreases. With groups of
# records there are many sampling rates, which makes marks expensive.
_RATIO, _RATIO_OF_GROUPS = 1.15, 1.25
# The first mark, as a share of the run.
_FIRST_SHARE = 1 / 200
# A coarse grid and few levels bound ε from above in a fraction of the time.
_POINTS = 2**11
_LEVELS = 16


class EpsilonCurve:
    """Looks up an upper bound on the ε of the first steps, usually in about a microsecond.

    ε never decreases with the number of steps, so the value at a mark bounds all steps before it.
    There is no interpolation, because ε over the number of steps is convex for some plans and
    concave for others. A mark takes a tenth of a second when it is first needed. The last mark is
    the end of the plan, with its exact value.

    Args:
        plan: the plan, with its population.

    Guarantees:
        Never below `plan.epsilon_spent(step)` by more than the accountant's own rounding.

    Examples:
        >>> plan = Plan(delta=1e-5, noise_multiplier=1.0, batch_size=50, steps=90, population=1000)
        >>> curve = EpsilonCurve(plan)
        >>> curve(0), curve(90) == plan.epsilon_spent()
        (0.0, True)
        >>> plan.epsilon_spent(50) <= curve(50) < 1.1 * plan.epsilon_spent(50)
        True
        >>> curve.exactly(50) == plan.epsilon_spent(50)
        True
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        ratio = _RATIO if plan.sampling.groups == 1 else _RATIO_OF_GROUPS
        self._steps = [plan.total_steps]
        while self._steps[-1] > max(1, _FIRST_SHARE * plan.total_steps):
            self._steps.append(math.floor(self._steps[-1] / ratio))
        self._steps.reverse()
        self._values = {plan.total_steps: plan.epsilon_spent()}
        self._exact = {0: 0.0, **self._values}

    def __call__(self, step: int) -> float:
        if step <= 0:
            return 0.0
        mark = self._steps[min(bisect_left(self._steps, step), len(self._steps) - 1)]
        if mark not in self._values:
            # The exact value at the end bounds all of them.
            self._values[mark] = min(_bound(self._plan, mark), self._values[self._steps[-1]])
        return self._values[mark]

    def exactly(self, step: int) -> float:
        """The exact ε of the first steps by the plan's accounting, computed once for each step.

        It takes a twentieth of a second, or half a second for a decreasing schedule. It is used for
        the few steps whose ε is stored with a score.
        """
        if step not in self._exact:
            self._exact[step] = self._plan.epsilon_spent(step)
        return self._exact[step]


def _bound(plan: Plan, steps: int) -> float:
    """An upper bound on the ε of the first steps, quickly."""
    adjacency, bounds = plan.adjacency, []
    for run in plan.segments_by_group(steps):
        few = with_few_levels(checked(run, adjacency), _LEVELS, min)
        few = with_few_rates(few, _LEVELS, max)
        bounds.append(epsilon_on_grid(few, plan.delta, adjacency, _POINTS))
    return max(bounds)
