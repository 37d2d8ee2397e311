"""Accountants with the interface of Opacus."""

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

# "prv" and "pld" are two names for the same method, which is dp-accounting's PLD here.
_METHODS = {
    "prv": accounting.epsilon,
    "pld": accounting.epsilon,
    "rdp": accounting.rdp_epsilon,
}


def method_of(accountant: str) -> str:
    """Check the name of an accountant."""
    if accountant == "gdp":
        raise validation.fail(
            "accountant",
            accountant,
            "is an approximation that reports less ε than is spent",
            "use 'prv'",
        )
    return validation.one_of("accountant", accountant, tuple(_METHODS))


def epsilon_of(history: Iterable[Entry], delta: float, method: str) -> float:
    """The ε of a history at δ, computed by the accountant of that name."""
    run = [Segment(rate, sigma, steps) for sigma, rate, steps in history]
    return _METHODS[method](run, delta)


class Accountant:
    """Counts the steps of all runs of one engine and computes their total cost.

    Args:
        accountant: "prv" or "pld" for the tight value, "rdp" for the looser second opinion.

    Attributes:
        history: (noise multiplier, sample rate, number of steps) of all steps so far. Set it to
            continue after an earlier process; its steps count against the budget of a run.

    Guarantees:
        Steps that were counted here stay counted: a history without them is rejected when it is
        set and when it is used.

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
        """The current history, checked, because users can modify the list."""
        return self._checked(self._history)

    def _checked(self, history: Iterable[Any]) -> tuple[Entry, ...]:
        entries = tuple(map(_entry, history))
        held: Counter[tuple[float, float]] = Counter()
        for sigma, rate, steps in entries:
            held[sigma, rate] += steps
        if not self._counted <= held:
            raise MisuseError(
                f"history={held.total()} steps: must contain the {self._counted.total()} steps "
                "that were counted here, because their cost cannot be taken back; load an earlier "
                "history before the first step."
            )
        return entries

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step. The optimizer calls this automatically."""
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
            An upper bound for add/remove-one adjacency. Calling this changes nothing.
        """
        return epsilon_of(self.entries(), delta, self._method)

    def state_dict(self) -> dict[str, Any]:
        """The history, for a checkpoint: numbers, text and lists only."""
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
                "must contain exactly 'mechanism' and 'history'",
                "pass what accountant.state_dict() returned",
            )
        if state["mechanism"] != self._method:
            raise validation.fail(
                "mechanism",
                state["mechanism"],
                f"must be {self._method!r}, the method of this accountant",
                "create the engine with the accountant of the stored run",
            )
        self.history = state["history"]

    def mechanism(self) -> str:
        """The accountant's name."""
        return self._method

    def __len__(self) -> int:
        """The number of steps, not of entries in the history."""
        return sum(steps for _, _, steps in self._history)


def create_accountant(mechanism: str) -> Accountant:
    """Create an accountant. Opacus has a function of this name.

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
    """Check an entry of a history. Entries read from a file are lists."""
    try:
        sigma, rate, steps = found
    except (TypeError, ValueError):
        raise validation.fail(
            "history",
            found,
            "must be (noise multiplier, sample rate, number of steps)",
            "pass accountant.history of the stored run",
        ) from None
    segment = Segment(rate, sigma, steps)
    return segment.noise_multiplier, segment.rate, segment.steps
