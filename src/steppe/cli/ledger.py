"""`steppe ledger`: the budget of all runs on the same data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.printing import print_json
from steppe.utils import validation
from steppe.utils.formatting import rounded_up, table

if TYPE_CHECKING:
    from steppe.ledger import Anchor, LedgerState

_EXAMPLES = """
steppe ledger create patients.jsonl --epsilon 3 --delta 1e-5
steppe train --data visits.csv --target ill --classes 2 --epsilon 1 --ledger patients.jsonl
steppe ledger show patients.jsonl
"""
_SHOWN_DIGITS = 12


def add(commands: Any) -> None:
    """Add the command to the parser."""
    own = parsing.new_group(
        commands,
        "ledger",
        purpose="The budget of all runs on the same data: create, show, verify.",
        examples=_EXAMPLES,
    )
    create = parsing.new_command(
        own,
        "create",
        run_create,
        purpose="Make a ledger with a budget for all runs together.",
        details="A run that would exceed the budget is rejected before its first step. The budget\n"
        "cannot be changed later.",
        examples="steppe ledger create patients.jsonl --epsilon 3 --delta 1e-5",
    )
    create.add_argument("file", type=parsing.path, metavar="FILE", help="a new file")
    create.add_argument(
        "--epsilon", type=parsing.real_number, metavar="ε", required=True, help="the budget"
    )
    create.add_argument(
        "--delta", type=parsing.real_number, metavar="δ", required=True, help="its δ"
    )
    show = parsing.new_command(
        own,
        "show",
        run_show,
        purpose="The runs in a ledger, what they cost together, and what is left.",
        examples="steppe ledger show patients.jsonl\nsteppe ledger show runs/first/ledger.jsonl",
    )
    verify = parsing.new_command(
        own,
        "verify",
        run_verify,
        purpose="Check that no line of a ledger was changed, moved or deleted.",
        details="Lines that were cut from the end leave no trace in the file. Store the anchor\n"
        "that this command and `show` print somewhere else, and give it here.",
        examples="steppe ledger verify patients.jsonl\n"
        "steppe ledger verify patients.jsonl --anchor 12:5f0c…",
    )
    verify.add_argument(
        "--anchor",
        metavar="LENGTH:HASH",
        help="an earlier anchor of this ledger, which must still be in it",
    )
    show.add_argument(
        "--delta",
        type=parsing.real_number,
        metavar="δ",
        help="of the total (default: that of the budget, or else the largest of the runs)",
    )
    for command in (show, verify):
        command.add_argument("file", type=parsing.path, metavar="FILE", help="of the ledger")
    for command in (create, show, verify):
        parsing.add_json(command)


def run_create(arguments: argparse.Namespace) -> int:
    """Write the first line of a ledger."""
    from steppe.ledger import Ledger

    with validation.called({"epsilon": "--epsilon", "delta": "--delta"}):
        ledger = Ledger(arguments.file, epsilon=arguments.epsilon, delta=arguments.delta)
        anchor = ledger.create()
    if arguments.json:
        print_json({"ledger": str(ledger.path), "budget": ledger.budget, "anchor": _text(anchor)})
    else:
        print(f"ledger: {ledger.path}, {_in_words(ledger.budget)}, no run yet")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print the runs and their total cost."""
    from steppe.ledger import Ledger

    ledger = Ledger(arguments.file)
    ledger.require_file()
    state, budget = ledger.state(), ledger.budget
    with validation.called({"delta": "--delta"}):
        found = _total(state, budget, arguments.delta)
    facts = {
        "ledger": str(ledger.path),
        "data": None if state.header is None else state.header["data"],
        "budget": budget,
        **found,
        "runs": _rows(state),
        "anchor": _text(ledger.anchor()),
    }
    if arguments.json:
        print_json(facts)
        return 0
    print(f"ledger: {facts['ledger']}, {_in_words(budget)}")
    if facts["data"] is not None:
        print(f"data: {facts['data']}")
    if facts["runs"]:
        cells = [
            (
                row["run"][:_SHOWN_DIGITS],
                f"{row['charged']:,} of {row['steps']:,}",
                rounded_up(row["epsilon"], 4),
                f"{row['delta']:g}",
            )
            for row in facts["runs"]
        ]
        print(f"\n{table([('run', 'steps charged', 'ε', 'δ'), *cells])}\n")
        print(f"together: ε = {rounded_up(found['epsilon'], 4)} at δ = {found['delta']:g}")
    else:
        print("no run yet")
    if found["left"] is not None:
        print(f"not spent: ε = {_rounded_down(found['left'])}")
    print(f"anchor: {facts['anchor']}")
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Check the hash chain. Damage gives exit code 1, a file that is not there is an error."""
    from steppe.errors import DataError
    from steppe.ledger import Ledger

    ledger = Ledger(arguments.file)
    ledger.require_file()
    earlier = None if arguments.anchor is None else _anchor(arguments.anchor)
    facts: dict[str, Any] = {"ledger": str(ledger.path), "intact": True}
    try:
        ledger.verify(earlier)
        facts |= {"runs": len(ledger.runs()), "anchor": _text(ledger.anchor())}
    except DataError as error:
        facts |= {"intact": False, "reason": str(error)}
    if arguments.json:
        print_json(facts)
    elif facts["intact"]:
        runs = "1 run" if facts["runs"] == 1 else f"{facts['runs']} runs"
        print(f"{ledger.path}: intact, {runs}\nanchor: {facts['anchor']}")
    else:
        print(f"{ledger.path}: not intact: {facts['reason']}")
    return 0 if facts["intact"] else 1


def _total(
    state: LedgerState, budget: dict[str, float] | None, delta: float | None
) -> dict[str, Any]:
    """What all runs cost together, at which δ, and what is left of the budget."""
    from steppe.accounting import check_delta

    if delta is not None:
        check_delta(delta)
    elif budget is not None:
        delta = budget["delta"]
    else:
        delta = max((run.delta for run in state.runs.values()), default=None)
    if delta is None:  # neither a run nor a budget
        return {"delta": None, "epsilon": 0.0, "left": None}
    left = None
    if budget is not None:
        left = max(0.0, budget["epsilon"] - state.epsilon(budget["delta"]))
    return {"delta": delta, "epsilon": state.epsilon(delta), "left": left}


def _rows(state: LedgerState) -> list[dict[str, Any]]:
    return [
        {
            "run": run.id,
            "charged": run.charged,
            "steps": run.steps,
            "epsilon": state.epsilon_of(run, run.delta),
            "delta": run.delta,
            "not_private_reason": run.not_private_reason,
        }
        for run in state.runs.values()
    ]


def _anchor(text: str) -> Anchor:
    from steppe.ledger import Anchor

    length, _, head = text.partition(":")
    if not (length.isdecimal() and head):
        rule, remedy = "must be LENGTH:HASH", "copy it from what `steppe ledger show` printed"
        raise validation.fail("--anchor", text, rule, remedy)
    return Anchor(int(length), head)


def _text(anchor: Anchor) -> str:
    return f"{anchor.length}:{anchor.head}"


def _in_words(budget: dict[str, float] | None) -> str:
    if budget is None:
        return "without a budget"
    return f"budget ε = {budget['epsilon']:g} at δ = {budget['delta']:g}"


def _rounded_down(value: float) -> str:
    return f"{int(value * 1e4) / 1e4:.4f}"
