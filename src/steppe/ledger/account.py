"""One run's access to a ledger: it has the lock and charges steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from steppe.errors import BudgetExhausted, SteppeError
from steppe.ledger.chain import Anchor, Record, Writer
from steppe.ledger.runs import Cost, LedgerState, minus, to_json
from steppe.plan import Plan
from steppe.utils import validation


class Account:
    """Charges one run's steps, a block at a time, before they are taken. Made by `Ledger`.

    Args:
        writer: the ledger's only writer, which this takes over.
        state: of the ledger.
        run: the run's id.
        plan: its plan.
        block: how many steps are charged at a time.

    Guarantees:
        When `cover(step)` returns, the charge of that step is on the disk. No more steps are
        charged than the plan has. Steps that are charged when a process crashes stay charged.
    """

    def __init__(
        self, writer: Writer, state: LedgerState, run: str, plan: Plan, block: int
    ) -> None:
        self.run, self.plan, self.block = state.runs[run], plan, block
        self._writer, self._state = writer, state

    @property
    def charged(self) -> int:
        """How many of the plan's steps are charged."""
        return self.run.charged

    @property
    def anchor(self) -> Anchor:
        """The ledger's length and last hash, to be stored elsewhere."""
        return self._writer.anchor

    def cover(self, step: int) -> None:
        """Charge blocks until a step, counted from 1, is covered."""
        while step > self.charged:
            if self.run.announced is None:
                raise BudgetExhausted(
                    f"step={step}: all {self.run.steps} steps of the plan are charged; publish the "
                    "model, or plan a new run."
                )
            charge = self.run.announced
            following = announcement(self.plan, charge["last"], self.block)
            self._write({"kind": "charge", "run": self.run.id, **charge, "next": following})

    def pause(self, begun: int) -> None:
        """Return charged steps that were not begun, at a regular end.

        Args:
            begun: how many steps of the plan were begun, finished or not.
        """
        kept = min(max(begun, 0), self.charged)
        returned = minus(cost(self.plan, self.charged), cost(self.plan, kept))
        given_back = {"last": kept, "returned": to_json(returned), "next": None}
        self._write({"kind": "pause", "run": self.run.id, **given_back})

    def close(self) -> None:
        """Release the lock."""
        self._writer.close()

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, record: Record) -> None:
        enter(self._writer, self._state, record)


def enter(writer: Writer, state: LedgerState, record: Record) -> None:
    """Check a record, write it to the file, and apply it to the state."""
    state.check(record)
    writer.append(record)
    state.apply(record)


def cost(plan: Plan, steps: int) -> Cost:
    """The cost of a plan's first steps, for each group of records."""
    return plan.segments_by_group(steps)


def announcement(plan: Plan, charged: int, block: int) -> Record | None:
    """The charge of the next block, or None at the plan's end."""
    last = min(charged + validation.positive_integer("block", block), plan.total_steps)
    if last == charged:
        return None
    return {"last": last, "cost": to_json(minus(cost(plan, last), cost(plan, charged)))}


def opening(kind: str, run: str, about: Mapping[str, Any], following: Record | None) -> Record:
    """The record that begins or resumes a run, and announces its next charge."""
    return {"kind": kind, "run": run, **about, "time": round(time.time(), 3), "next": following}


def pause_quietly(account: Account, begun: int) -> None:
    """`pause` during another error. If the ledger cannot be written, the steps stay charged."""
    with suppress(SteppeError):
        account.pause(begun)
