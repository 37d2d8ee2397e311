"""Which runs a ledger accepts: their cost can be added up, and fits into its budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steppe.errors import BudgetExhausted
from steppe.ledger.chain import Record
from steppe.ledger.runs import Cost, LedgerRun, LedgerState
from steppe.plan import Plan
from steppe.utils import validation

FORMAT = 1
_REMEDIES = {
    "data": "give the same people's data the same name (PrivateData(name=…), or called under "
    "[data]), also from another file, and other people's data a ledger of their own"
}
# The other runs that share an exceeded budget, and the remedy: for a new and for a resumed run.
_NEW = ("all before it", "plan a run with a smaller epsilon")
_RESUMED = (
    "all others, some since it was interrupted,",
    "use its checkpoints, whose steps are charged, or plan a new run with a smaller epsilon",
)


def header(plan: Plan, data: Mapping[str, Any], budget: Mapping[str, float] | None) -> Record:
    """The first record of a ledger, with what all its runs must share."""
    return {
        "kind": "open",
        "format": FORMAT,
        "data": data.get("name"),
        "adjacency": plan.adjacency,
        "unit": plan.unit,
        "budget": budget,
    }


def empty_header(budget: Mapping[str, float]) -> Record:
    """The first record of a ledger without runs; the first run completes it."""
    return {
        "kind": "open",
        "format": FORMAT,
        "data": None,
        "adjacency": None,
        "unit": None,
        "budget": dict(budget),
    }


def require_same_run(found: LedgerRun, plan: Plan, data: Mapping[str, Any]) -> None:
    """Require that a resumed run has the same plan and data."""
    if found.plan != plan.digest():
        raise validation.fail(
            "plan",
            plan.digest()[:12],
            f"is not the plan of this run, {found.plan[:12]}",
            "resume with the same constants, or start a new run",
        )
    if found.data != dict(data):
        raise validation.fail(
            "data",
            dict(data),
            f"are not the data of this run, {found.data}",
            "resume with the same data, or start a new run",
        )


def require_addable(path: Path, state: LedgerState, plan: Plan, data: Mapping[str, Any]) -> None:
    """Require a run whose cost can be added to that of the others.

    Args:
        path: the ledger's file.
        state: of the ledger.
        plan: of the run.
        data: what is declared about its data.
    """
    shared = state.header or {}
    if shared.get("format") != FORMAT:
        raise validation.fail("ledger", path, f"is not of format {FORMAT}", "use another file")
    for name, own in (
        ("data", data.get("name")),
        ("adjacency", plan.adjacency),
        ("unit", plan.unit),
    ):
        if own != shared[name]:
            raise validation.fail(
                name,
                own,
                f"must be that of the ledger, {shared[name]!r}, for runs to add up",
                _REMEDIES.get(name, "use another ledger for this run"),
            )


def require_room(
    state: LedgerState,
    declared: Mapping[str, float] | None,
    rest: Cost,
    not_private_reason: str | None,
    *,
    resumed: bool = False,
) -> None:
    """Require a run that fits into the ledger's budget, if there is one.

    Args:
        state: of the ledger.
        declared: the budget given by the user, which must be that of the ledger; None if not given.
        rest: the cost of the remaining steps.
        not_private_reason: why the run is not private, or None.
        resumed: whether the run is resumed.
    """
    shared = state.header or {}
    budget = shared["budget"]
    if declared is not None and declared != budget:
        own, remedy = "which has none", "leave it out, or use a new ledger"
        if budget is not None:
            own = f"ε = {budget['epsilon']:g} at δ = {budget['delta']:g}"
            remedy = "leave it out, since the ledger keeps its own budget"
        rule = f"is not the budget of the ledger, {own}"
        raise validation.fail("epsilon", declared["epsilon"], rule, remedy)
    if budget is not None:
        if not_private_reason is not None:  # a single step would use up any budget
            raise validation.fail(
                "not_private_reason",
                not_private_reason,
                f"makes epsilon infinite, and the ledger allows {budget['epsilon']:g}",
                "give a run with known noise a ledger of its own",
            )
        together = state.epsilon(budget["delta"], rest)
        if together > budget["epsilon"]:
            others, remedy = _RESUMED if resumed else _NEW
            raise BudgetExhausted(
                f"This run and {others} would cost epsilon={together:.4f} together, and the "
                f"ledger allows {budget['epsilon']:g} at delta={budget['delta']:g}; {remedy}."
            )


def require_accountable(state: LedgerState, plan: Plan, whole: Cost) -> None:
    """Require a δ at which ε of all runs can be computed after this run."""
    limit = state.smallest_delta(whole)
    if plan.delta < limit:
        raise validation.fail(
            "delta",
            plan.delta,
            f"must be at least {limit:g} for this run and those before it to be added up",
            "use that delta, or another ledger",
        )
