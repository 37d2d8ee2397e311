"""One run's hold on a ledger: the lock, and the right to charge."""

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
        state: what the ledger adds up to.
        run: the run's id.
        plan: its plan.
        block: how many steps are charged at a time.

    Guarantees:
        When `cover(step)` returns, that step is on the disk as paid for; it never pays for more
        steps than the plan has. What a crash leaves charged stays charged.
    """

    def __init__(
        self, writer: Writer, state: LedgerState, run: str, plan: Plan, block: int
    ) -> None:
        self.run, self.plan, self.block = state.runs[run], plan, block
        self._writer, self._state = writer, state

    @property
    def charged(self) -> int:
        """How many of the plan's steps are paid for."""
        return self.run.charged

    @property
    def anchor(self) -> Anchor:
        """The ledger's length and last hash, for others to keep."""
        return self._writer.anchor

    def cover(self, step: int) -> None:
        """See to it that a step, counted from 1, is paid for."""
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
        """Give back charged steps that were never begun, at an orderly end.

        Args:
            begun: steps of the plan that were begun, whether finished or not.
        """
        kept = min(max(begun, 0), self.charged)
        returned = minus(cost(self.plan, self.charged), cost(self.plan, kept))
        given_back = {"last": kept, "returned": to_json(returned), "next": None}
        self._write({"kind": "pause", "run": self.run.id, **given_back})

    def close(self) -> None:
        """Let other runs write."""
        self._writer.close()

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, record: Record) -> None:
        enter(self._writer, self._state, record)


def enter(writer: Writer, state: LedgerState, record: Record) -> None:
    """Write a record and go on by it; one that makes no sense does not get into the file."""
    state.check(record)
    writer.append(record)
    state.apply(record)


def cost(plan: Plan, steps: int) -> Cost:
    """What a plan's first steps cost, one account for each group of records."""
    return plan.segments_by_group(steps)


def announcement(plan: Plan, charged: int, block: int) -> Record | None:
    """The charge of the block that follows, or None at the plan's end."""
    last = min(charged + validation.positive_integer("block", block), plan.total_steps)
    if last == charged:
        return None
    return {"last": last, "cost": to_json(minus(cost(plan, last), cost(plan, charged)))}


def opening(kind: str, run: str, about: Mapping[str, Any], following: Record | None) -> Record:
    """The record that a run begins, or goes on, with this charge as its next."""
    return {"kind": kind, "run": run, **about, "time": round(time.time(), 3), "next": following}


def pause_quietly(account: Account, begun: int) -> None:
    """Give back what was not begun where an error is on its way already.

    A ledger that cannot be written keeps the steps charged, which is safe.
    """
    with suppress(SteppeError):
        account.pause(begun)
