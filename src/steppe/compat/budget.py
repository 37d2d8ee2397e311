"""How many steps a budget allows, given what was spent before."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from steppe.compat.accountant import Accountant, Entry, epsilon_of
from steppe.errors import BudgetExhausted


@dataclass(frozen=True)
class Budget:
    """The largest total cost of the steps in an accountant.

    Args:
        epsilon: the largest ε.
        delta: the δ at which ε is computed.
        noise_multiplier, sample_rate: of the run's own steps.
        steps: how many of them the budget allows if nothing else was spent.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    sample_rate: float
    steps: int

    def require_another(self, accountant: Accountant) -> None:
        """Raise an error if the budget does not allow another step.

        Args:
            accountant: its history contains the steps of this run, and may contain those of earlier
                processes and of other mechanisms.
        """
        history = accountant.entries()
        others = tuple(entry for entry in history if not self._pays_for(entry))
        done = sum(entry[2] for entry in history if self._pays_for(entry))
        paid = _paid_beside(self, others, accountant.mechanism()) if others else self.steps
        if done >= paid:
            beside = " of this run beside the others that the accountant holds" if others else ""
            raise BudgetExhausted(
                f"steps={done + 1}: the budget pays for {paid} steps{beside}; publish the model, "
                "or ask make_private_with_epsilon for more epochs before training."
            )

    def _pays_for(self, entry: Entry) -> bool:
        return entry[:2] == (self.noise_multiplier, self.sample_rate)


@lru_cache(maxsize=8)  # called before every step; the other entries seldom change
def _paid_beside(budget: Budget, others: tuple[Entry, ...], method: str) -> int:
    """The largest number of steps that stays within the budget together with other entries."""

    def too_much(steps: int) -> bool:
        own = (budget.noise_multiplier, budget.sample_rate, steps)
        return epsilon_of((*others, own), budget.delta, method) > budget.epsilon

    return bisect_right(range(1, budget.steps + 1), False, key=too_much)
