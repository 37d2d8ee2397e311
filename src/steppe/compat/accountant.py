"""What was spent, under the names that Opacus gives it."""

from __future__ import annotations

from steppe import _validate, accounting
from steppe.accounting import Segment

# "prv" and "pld" are two names of one idea, computed here by dp-accounting's PLD.
_METHODS = {
    "prv": accounting.epsilon,
    "pld": accounting.epsilon,
    "rdp": accounting.rdp_epsilon,
}


def method_of(accountant: str) -> str:
    """The name of an accountant, or why it cannot be had."""
    if accountant == "gdp":
        raise _validate.fail(
            "accountant",
            accountant,
            "is an approximation that reports less ε than is spent",
            "use 'prv'",
        )
    return _validate.one_of("accountant", accountant, tuple(_METHODS))


class Accountant:
    """Counts the steps of every run of one engine and says what they cost together.

    Args:
        accountant: "prv" or "pld" for the tight value, "rdp" for the looser second opinion.

    Examples:
        >>> accountant = Accountant("prv")
        >>> for _ in range(3):
        ...     accountant.step(noise_multiplier=1.1, sample_rate=0.01)
        >>> accountant.history, len(accountant)
        ([(1.1, 0.01, 3)], 3)
    """

    def __init__(self, accountant: str) -> None:
        self._method = method_of(accountant)
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step; the optimizer does this by itself."""
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def get_epsilon(self, delta: float) -> float:
        """The ε that all steps so far cost at δ.

        Args:
            delta: the δ of (ε, δ)-differential privacy.

        Returns:
            ε ≥ 0; 0 before the first step.

        Guarantees:
            An upper bound for add/remove-one adjacency. Asking changes nothing.
        """
        run = [Segment(rate, sigma, steps) for sigma, rate, steps in self.history]
        return _METHODS[self._method](run, delta)

    def mechanism(self) -> str:
        """The accountant's name."""
        return self._method

    def __len__(self) -> int:
        """The number of steps, not of entries in the history."""
        return sum(steps for _, _, steps in self.history)
