"""What was spent, under the names that Opacus gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from steppe import accounting
from steppe.accounting import Segment
from steppe.errors import MisuseError
from steppe.utils import validation

# Noise multiplier, sample rate and number of equal steps, in the order of Opacus.
Entry: TypeAlias = tuple[float, float, int]

# "prv" and "pld" are two names of one idea, computed here by dp-accounting's PLD.
_METHODS = {
    "prv": accounting.epsilon,
    "pld": accounting.epsilon,
    "rdp": accounting.rdp_epsilon,
}


def method_of(accountant: str) -> str:
    """The name of an accountant, or why it cannot be had."""
    if accountant == "gdp":
        raise validation.fail(
            "accountant",
            accountant,
            "is an approximation that reports less ε than is spent",
            "use 'prv'",
        )
    return validation.one_of("accountant", accountant, tuple(_METHODS))


def epsilon_of(history: Iterable[Entry], delta: float, method: str) -> float:
    """The ε that the steps of a history cost at δ, by the accountant of that name."""
    run = [Segment(rate, sigma, steps) for sigma, rate, steps in history]
    return _METHODS[method](run, delta)


class Accountant:
    """Counts the steps of every run of one engine and says what they cost together.

    Args:
        accountant: "prv" or "pld" for the tight value, "rdp" for the looser second opinion.

    Attributes:
        history: (noise multiplier, sample rate, number of steps) of what was spent. Set it to go on
            where an earlier process stopped; its steps count against the budget of a run.

    Guarantees:
        Steps that were counted here stay counted: a history without them is refused, whenever it
        is set or asked about.

    Examples:
        >>> accountant = Accountant("prv")
        >>> for _ in range(3):
        ...     accountant.step(noise_multiplier=1.1, sample_rate=0.01)
        >>> accountant.history, len(accountant)
        ([(1.1, 0.01, 3)], 3)
    """

    def __init__(self, accountant: str) -> None:
        self._method = method_of(accountant)
        self._history: list[Entry] = []
        self._counted: Counter[tuple[float, float]] = Counter()  # steps by noise and rate

    @property
    def history(self) -> list[Entry]:
        """What was spent so far."""
        return self._history

    @history.setter
    def history(self, history: Iterable[Any]) -> None:
        self._history = list(self._checked(history))

    def entries(self) -> tuple[Entry, ...]:
        """The history as it is now, checked: its list is open to everybody."""
        return self._checked(self._history)

    def _checked(self, history: Iterable[Any]) -> tuple[Entry, ...]:
        entries = tuple(map(_entry, history))
        held: Counter[tuple[float, float]] = Counter()
        for sigma, rate, steps in entries:
            held[sigma, rate] += steps
        if not self._counted <= held:
            raise MisuseError(
                f"history={held.total()} steps: must hold the {self._counted.total()} that were "
                "counted here, since what was released stays released; load an earlier history "
                "before the first step, and add to it afterwards."
            )
        return entries

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step; the optimizer does this by itself."""
        steps = 1
        if self._history and self._history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self._history.pop()[2]
        self._history.append((noise_multiplier, sample_rate, steps))
        self._counted[noise_multiplier, sample_rate] += 1

    def get_epsilon(self, delta: float) -> float:
        """The ε that all steps so far cost at δ.

        Args:
            delta: the δ of (ε, δ)-differential privacy.

        Returns:
            ε ≥ 0; 0 before the first step.

        Guarantees:
            An upper bound for add/remove-one adjacency. Asking changes nothing.
        """
        return epsilon_of(self.entries(), delta, self._method)

    def state_dict(self) -> dict[str, Any]:
        """What was spent, for a checkpoint: numbers, text and lists only."""
        return {"mechanism": self._method, "history": [list(entry) for entry in self.entries()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Args:
            state: of an accountant of the same mechanism.
        """
        if not isinstance(state, Mapping) or set(state) != {"mechanism", "history"}:
            raise validation.fail(
                "state",
                type(state).__name__,
                "must hold 'mechanism' and 'history', no more and no less",
                "give what accountant.state_dict() returned",
            )
        if state["mechanism"] != self._method:
            raise validation.fail(
                "mechanism",
                state["mechanism"],
                f"must be {self._method!r}, by which this accountant counts",
                "make the engine with the accountant of the stored run",
            )
        self.history = state["history"]

    def mechanism(self) -> str:
        """The accountant's name."""
        return self._method

    def __len__(self) -> int:
        """The number of steps, not of entries in the history."""
        return sum(steps for _, _, steps in self._history)


def create_accountant(mechanism: str) -> Accountant:
    """An accountant of its own, under the name that Opacus gives its maker.

    Args:
        mechanism: "prv" or "pld" for the tight value, "rdp" for the looser second opinion.

    Examples:
        >>> accountant = create_accountant("prv")
        >>> accountant.step(noise_multiplier=1.1, sample_rate=0.01)
        >>> len(accountant)
        1
    """
    return Accountant(mechanism)


def _entry(found: Any) -> Entry:
    """An entry of a history, which may have been lists in a file."""
    try:
        sigma, rate, steps = found
    except (TypeError, ValueError):
        raise validation.fail(
            "history",
            found,
            "must hold (noise multiplier, sample rate, number of steps)",
            "give what accountant.history was when the run was stored",
        ) from None
    segment = Segment(rate, sigma, steps)
    return segment.noise_multiplier, segment.rate, segment.steps
