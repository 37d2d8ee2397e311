"""The output of `steppe budget`: numbers, an explanation, and the cost of variations."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

from steppe.cli.printing import paragraph
from steppe.errors import ConfigurationError, PrivacyWarning
from steppe.plan import Plan
from steppe.utils.formatting import rounded_up, table

# One constant at a time, and what it is multiplied by.
_CHANGES: tuple[tuple[str, str, float], ...] = (
    ("this run", "steps", 1.0),
    ("half the steps", "steps", 0.5),
    ("twice the steps", "steps", 2.0),
    ("half the batch", "batch_size", 0.5),
    ("twice the batch", "batch_size", 2.0),
    ("half the noise", "noise_multiplier", 0.5),
    ("twice the noise", "noise_multiplier", 2.0),
)
# The tiers of "How to DP-fy ML", arXiv 2303.00654, section 5.2.
_TIERS = (
    (1.0, "a strong formal guarantee"),
    (10.0, "a reasonable guarantee, common in practice"),
    (math.inf, "a weak guarantee: little is promised above ε = 10"),
)
_LARGE_DELTA = "with δ at 1/population or above, whole records may be published"
_FALSE_ALARMS = 0.01
_FOUND = {
    "epsilon": "what the run costs",
    "noise_multiplier": "the least noise that stays within the budget",
    "steps": "the most steps that stay within the budget",
    "batch_size": "the largest batch that stays within the budget",
    "population": "the smallest population that stays within the budget",
}


@dataclass(frozen=True)
class Answer:
    """A plan, its cost and the cost of variations.

    Attributes:
        plan: the complete run.
        spent: its ε.
        missing: the constant that was found; None if all were given.
        asked: the ε that was given, if any.
        variations: the costs of runs with one constant halved or doubled.
    """

    plan: Plan
    spent: float
    missing: str | None
    asked: float | None
    variations: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, plan: Plan, missing: str | None, asked: float | None) -> Answer:
        """The answer, with everything computed that the plan determines."""
        return cls(plan, plan.epsilon_spent(), missing, asked, _variations(plan))

    @property
    def within(self) -> bool:
        """Whether the run stays within the budget that was asked for."""
        return self.asked is None or self.spent <= self.asked

    @property
    def explanation(self) -> str:
        """The numbers in plain words."""
        plan, spent = self.plan, self.spent
        parts = plan.total_steps * plan.rate
        queried = "" if plan.queries == 1 else f" and queried {plan.queries} times"
        drawn = (
            f"Each of the {plan.total_steps:,} steps uses about {plan.batch_size:,g} of "
            f"{plan.population:,} records, each sampled independently with probability "
            f"{plan.rate:.3g}{queried}, so a record takes part in {parts:,.1f} steps on average."
        )
        if math.isinf(spent):
            return f"{drawn} ε is infinite: nothing is promised."
        return (
            f"{drawn} An attacker who sees all weights and knows all other records can raise the "
            f"odds that a given record was used by a factor of at most {_factor(spent)}, except "
            f"with probability δ = {plan.delta:g}. A membership test with a false positive rate of "
            f"{_FALSE_ALARMS:.0%} has a true positive rate of at most "
            f"{_power(spent, plan.delta):.1%}. This is {self._tier}."
        )

    @property
    def _tier(self) -> str:
        """An assessment of ε; no guarantee if δ alone allows whole records to be published."""
        if self.plan.delta * (self.plan.population or 1) >= 1:
            return f"no meaningful guarantee, whatever ε is: {_LARGE_DELTA}"
        return next(words for most, words in _TIERS if self.spent <= most)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        plan = self.plan
        constants = plan.to_dict()
        return {
            "found": self.missing,
            "epsilon": self.spent,
            "delta": plan.delta,
            "noise_multiplier": plan.sigma,
            "steps": plan.total_steps,
            "epochs": self._epochs,
            "batch_size": plan.batch_size,
            "population": plan.population,
            "asked_epsilon": self.asked,
            "within": self.within if self.asked is not None else None,
            **{name: constants[name] for name in ("rate", "cap", "adjacency")},
            **{name: constants[name]["kind"] for name in ("sampling", "point", "clip", "noise")},
            "sensitivity": plan.sensitivity,
            "queries": plan.queries,
            "explanation": self.explanation,
            "variations": list(self.variations),
        }

    def __str__(self) -> str:
        plan = self.plan
        rows = [
            ("epsilon", "ε", rounded_up(self.spent)),
            ("", "δ", f"{plan.delta:g}"),
            ("noise_multiplier", "noise multiplier σ", f"{plan.sigma:g}"),
            ("steps", "steps", f"{plan.total_steps:,} ({self._epochs:.4g} epochs)"),
            ("batch_size", "expected batch", f"{plan.batch_size:,g}"),
            ("population", "population", f"{plan.population:,}"),
        ]
        marked = [
            (words, value, f"← {_FOUND[name]}" if name == self.missing else "")
            for name, words, value in rows
        ]
        parts = [table(marked, left=3), paragraph(self.explanation), self._table()]
        if not self.within:
            parts.insert(1, f"The run costs more than the ε = {self.asked:g} that was asked for.")
        return "\n\n".join(parts)

    @property
    def _epochs(self) -> float:
        return self.plan.total_steps * self.plan.rate

    def _table(self) -> str:
        head = ("if", "σ", "steps", "batch", "noise on the mean", "ε")
        rows = [
            (
                row["change"],
                f"{row['noise_multiplier']:.4g}",
                f"{row['steps']:,}",
                f"{row['batch_size']:,g}",
                f"{row['noise_on_the_mean']:.2e}",
                rounded_up(row["epsilon"]),
            )
            for row in self.variations
        ]
        return table([head, *rows])


def _variations(plan: Plan) -> tuple[dict[str, Any], ...]:
    rows = []
    for words, name, factor in _CHANGES:
        values: dict[str, Any] = {
            "steps": plan.total_steps,
            "batch_size": plan.batch_size,
            "noise_multiplier": plan.sigma,
        }
        values[name] *= factor
        values["steps"] = max(1, round(values["steps"]))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrivacyWarning)  # the plan itself has said it
                other = replace(plan, epsilon=None, epochs=None, **values)
                cost = other.epsilon_spent()
        except ConfigurationError:  # twice the batch may exceed the population
            continue
        noise = other.noise_std / other.divisor
        rows.append({"change": words, **values, "noise_on_the_mean": noise, "epsilon": cost})
    return tuple(rows)


def _factor(epsilon: float) -> str:
    """e^ε, rounded up to two digits."""
    if epsilon > 300:
        return f"e^{math.ceil(epsilon)}"
    factor = math.exp(epsilon)
    unit = 10.0 ** (math.floor(math.log10(factor)) - 1)
    return f"{math.ceil(factor / unit) * unit:,.3g}"


def _power(epsilon: float, delta: float) -> float:
    """The largest true positive rate of a test at that false positive rate, from (ε, δ)."""
    return min(
        1.0,
        math.exp(min(epsilon, 300.0)) * _FALSE_ALARMS + delta,
        1.0 - math.exp(-epsilon) * (1.0 - delta - _FALSE_ALARMS),
    )
