"""What a run says about its ledger: where it stands in it, and what all runs cost together."""

from __future__ import annotations

import math
from typing import Any

from steppe.ledger import Ledger


def runs_before(ledger: Ledger, run: str) -> int:
    """How many runs had been charged when a run began.

    Args:
        ledger: the ledger.
        run: the id of the run, which may not be in it yet.
    """
    found = list(ledger.runs().values())
    names = [one.id for one in found]
    earlier = found[: names.index(run)] if run in names else found
    return sum(one.charged > 0 for one in earlier)


def standing(path: str, before: int) -> str:
    """The line about a ledger that was named, so that a slip in its name is seen.

    Examples:
        >>> standing("/data/patients.jsonl", 0), standing("/data/patients.jsonl", 1)
        ('ledger: /data/patients.jsonl, new', 'ledger: /data/patients.jsonl, 1 run before this one')
    """
    counted = "1 run" if before == 1 else f"{before} runs"
    return f"ledger: {path}, {f'{counted} before this one' if before else 'new'}"


def cost_together(ledger: Ledger, delta: float) -> dict[str, Any]:
    """How many `runs` are charged, their `epsilon` at `delta`, and why that is infinite, if so."""
    charged = [run for run in ledger.runs().values() if run.charged]
    epsilon = ledger.epsilon(delta)
    known = sum(run.not_private_reason is not None for run in charged)
    reason = None
    if known:
        whose = "this run" if len(charged) == 1 else f"{known} of {len(charged)} runs"
        reason = f"the noise of {whose} is known"
    elif not math.isfinite(epsilon):
        reason = "the noise is too small for any ε"
    return {
        "runs": len(charged),
        "epsilon": epsilon,
        "delta": delta,
        "not_private_reason": reason,
    }
