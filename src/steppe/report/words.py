"""What (ε, δ) means, in words that need no background."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steppe.report.numbers import bound, percent, short
from steppe.report.run import ReportedRun, number

WARNING = "WARNING:"
_FALSE_ALARMS = 0.01


def best_guess(pairs: Sequence[tuple[float, float]]) -> float:
    """The largest share of right guesses at whether one unit took part, over a fair coin.

    Args:
        pairs: (ε, δ) that all hold for the same run.

    Returns:
        (e^ε + δ)/(e^ε + 1), the smallest over the pairs.

    Examples:
        >>> round(best_guess([(2.0, 1e-5)]), 4), best_guess([(0.0, 0.0)])
        (0.8808, 0.5)
    """
    return min(1 - (1 - delta) / (1 + _exp(epsilon)) for epsilon, delta in pairs)


def most_found(pairs: Sequence[tuple[float, float]], false_alarms: float) -> float:
    """The largest chance to recognise a unit that took part, at a rate of false alarms.

    Args:
        pairs: (ε, δ) that all hold for the same run.
        false_alarms: the chance to accuse a unit that did not take part.

    Returns:
        The smallest of e^ε·a + δ and 1 − e^−ε·(1 − δ − a) over the pairs.

    Examples:
        >>> round(most_found([(2.0, 1e-5)], 0.01), 4)
        0.0739
    """
    return min(
        min(_exp(eps) * false_alarms + delta, 1 - (1 - delta - false_alarms) / _exp(eps))
        for eps, delta in pairs
    )


def bounds(run: ReportedRun) -> list[tuple[float, float]]:
    """The (ε, δ) pairs that hold for a run, the one of record first; empty if none does."""
    epsilon, delta = run.epsilon, number(run.statement or {}, "delta")
    if epsilon is None or delta is None or not math.isfinite(epsilon):
        return []
    promised = number(run.statement or {}, "epsilon")
    curve = (run.statement or {}).get("curve")
    # The curve belongs to the planned ε: if more was spent, it does not apply.
    holds = promised is not None and epsilon <= promised
    further = [
        (value, at)
        for entry in (curve if holds and isinstance(curve, list) else ())
        if isinstance(entry, dict)
        and (value := number(entry, "epsilon")) is not None
        and (at := number(entry, "delta")) is not None
    ]
    return [(epsilon, delta), *further]


def plain_words(run: ReportedRun) -> list[str]:
    """Paragraphs about the guarantee, or about its absence."""
    if run.statement is None:
        return ["This folder has no privacy statement, so no guarantee is shown."]
    if run.void_reason is not None:
        return [f"NOT PRIVATE: {run.void_reason}", "Nothing is promised about this run."]
    pairs = bounds(run)
    if not pairs:
        return ["ε is infinite: nothing is promised about this run."]
    unit = str(run.statement.get("unit", "record"))
    epsilon, delta = pairs[0]
    question = (
        f"which of two {unit}s was in the training data"
        if run.statement.get("adjacency") == "replace-one"
        else f"whether one {unit} was in the training data"
    )
    guess, found = best_guess(pairs), most_found(pairs, _FALSE_ALARMS)
    return [
        *_warning(run, unit, delta),
        *([f"{WARNING} {run.caution}"] if run.caution is not None else []),
        f"The released weights hide {question}. Consider an attacker who has the weights and knows "
        f"the {unit} and all the other {unit}s. A random guess is right half of the time; with the "
        f"weights the attacker is right at most {_at_most(guess)} of the time. With a false "
        f"positive rate of {percent(_FALSE_ALARMS, 0)}, the attacker recognises a {unit} that was "
        f"used with a probability of at most {_at_most(found)}.",
        f"In terms of differential privacy: ε = {bound(epsilon, 4)} at δ = {short(delta)}. "
        "Smaller is more private. It covers every checkpoint of this run and all that is computed "
        "from them, averages included. It does not cover other runs on the same data, settings "
        "that were chosen with its help, or losses and accuracies measured on it.",
        *_isolation(run, unit),
        *_together(run),
    ]


def delta_too_large(run: ReportedRun) -> bool:
    """Whether δ is 1 over the population or more, as item 8 of the statement says it."""
    facts = run.statement or {}
    delta, population = number(facts, "delta"), number(facts, "population")
    return delta is not None and population is not None and delta * population >= 1


def _warning(run: ReportedRun, unit: str, delta: float) -> list[str]:
    if not delta_too_large(run):
        return []
    return [
        f"{WARNING} δ = {short(delta)} is not below 1 over the population. Whole "
        f"{unit}s may be published as they are, whatever ε is: no meaningful guarantee."
    ]


def _isolation(run: ReportedRun, unit: str) -> list[str]:
    """A sentence on how isolation is known, if the statement says it."""
    known = {
        "proven": "is proven from the operations of the model and its loss",
        "isolated": f"holds by construction: {unit}s went through the model one at a time",
    }
    said = known.get(str((run.statement or {}).get("isolation")))
    if said is None:
        return []
    return [f"That a {unit}'s gradient depends on that {unit} alone, as ε presumes, {said}."]


def _together(run: ReportedRun) -> list[str]:
    """What all runs on the same data cost, where the ledger has more than this one."""
    ledger = (run.result or {}).get("ledger")
    if not isinstance(ledger, dict):
        return []
    runs, epsilon, delta = (number(ledger, key) for key in ("runs", "epsilon", "delta"))
    if runs is None or runs < 2 or delta is None:
        return []
    counted = f"The ledger had {short(runs)} runs on the same data when this run ended."
    if epsilon is None or not math.isfinite(epsilon):
        reason = ledger.get("not_private_reason") or "the noise of one of them is known"
        return [
            f"{WARNING} {counted} What all of them released has an infinite ε together, since "
            f"{reason}: whoever sees it faces no bound."
        ]
    return [
        f"{counted} Together, what they released has ε = {bound(epsilon, 4)} at δ = {short(delta)}."
    ]


def _exp(epsilon: float) -> float:
    return math.exp(min(epsilon, 700.0))  # beyond, a float overflows and the bound is 1 anyway


def _at_most(share: float) -> str:
    """A bound in percent, rounded up."""
    return percent(min(1.0, math.ceil(round(share * 1000, 6)) / 1000))
