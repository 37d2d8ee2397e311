"""The ledger: every step that was ever paid for with the privacy of one data set."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from steppe.accounting import check_delta
from steppe.errors import DataError, StorageError
from steppe.ledger.account import Account, announcement, cost, enter, opening
from steppe.ledger.admission import (
    header,
    require_accountable,
    require_addable,
    require_room,
    require_same_run,
)
from steppe.ledger.chain import Anchor, Reading, Record, Writer, read
from steppe.ledger.runs import LedgerRun, LedgerState, minus
from steppe.plan import Plan
from steppe.utils import validation
from steppe.utils.files import unwritable


class Ledger:
    """An append-only, hash-chained file in which runs on one data set add up.

    A run holds the file's lock while it trains, and writes what a block of steps costs before it
    takes the first of them. What is in the ledger is public: the plan's constants and what the
    owner declared about the data, no number that was computed from records. (Not even a hash of
    them, by which anybody with a guess could check it.) The one exception: where the population is
    not declared, it is the data's length, and it and the rate stand in the ledger.

    Args:
        path: the file; made by the first run.
        epsilon: a budget for all runs together; a run that does not fit, or whose noise is known,
            is refused before its first step. The first run that is not refused writes it into the
            ledger, where it holds from then on.
        delta: the δ of that budget.

    Guarantees:
        A step that was begun is in the file, whatever ended the process. An edited or missing line
        is refused by its number. Lines cut from the end are found by the checkpoints that
        remember them; without any copy of them elsewhere they cannot be.

        A torn last line counts as the charge that its predecessor announced: it costs at most one
        block too much, and never too little.

    Examples:
        >>> import tempfile
        >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "ledger.jsonl", epsilon=3.0, delta=1e-5)
        >>> plan = Plan(epsilon=2.0, delta=1e-5, population=1000, batch_size=50, steps=20)
        >>> with ledger.begin(plan, {"name": "patients"}, block=8) as account:
        ...     account.cover(1)
        ...     account.charged
        8
        >>> ledger.epsilon(1e-5) == plan.epsilon_spent(8)
        True
    """

    def __init__(
        self, path: str | Path, *, epsilon: float | None = None, delta: float | None = None
    ) -> None:
        remedy = 'write "patients.jsonl", say'
        self.path = validation.path("ledger", path, remedy)
        if path == "":
            raise validation.fail("ledger", path, "must name a file", remedy)
        if (epsilon is None) != (delta is None):
            absent, other = ("epsilon", "delta") if epsilon is None else ("delta", "epsilon")
            raise validation.missing(absent, rule=f"is required with {other}")
        self._budget: dict[str, float] | None = None
        if epsilon is not None and delta is not None:
            check_delta(delta)
            budget = validation.positive("epsilon", epsilon)
            self._budget = {"epsilon": budget, "delta": float(delta)}

    def epsilon(self, delta: float) -> float:
        """The ε that all runs together have cost at this δ, by PLD.

        Guarantees:
            An upper bound, also while a run is writing and after one was cut short. Infinite once
            a run with seeded noise has taken a step.
        """
        if not self.path.exists():  # a file by another name must not read as nothing spent
            raise DataError.about(
                "ledger",
                self.path,
                "there is no such file, so the cost of earlier runs is unknown",
                "give the file that runs wrote, or begin one",
            )
        state, _ = self._state(read(self.path))
        return state.epsilon(delta)

    def runs(self) -> dict[str, LedgerRun]:
        """Every run in the ledger, by its id, in the order in which they began."""
        return self._state(read(self.path))[0].runs

    def anchor(self) -> Anchor:
        """The present length and last hash. A copy kept elsewhere shows a later cut."""
        return read(self.path).anchor

    def begin(
        self,
        plan: Plan,
        data: Mapping[str, Any],
        *,
        block: int,
        run: str | None = None,
        not_private_reason: str | None = None,
    ) -> Account:
        """Open a new run.

        Args:
            plan: its plan.
            data: what is declared about the data, in terms of JSON. The `name` must be that of the
                ledger; `steppe.training` adds the population and the shape of a record.
            block: steps charged at a time; a crash costs at most so many that were not taken.
            run: an id that no other run has; None makes one.
            not_private_reason: what `source.not_private_reason` says; None if there is a budget.

        Returns:
            The account, which holds the ledger's lock until it is closed.
        """
        with self._writing() as (writer, state):
            first = state.header or header(plan, data, self._budget)
            whole = cost(plan, plan.total_steps)
            asked = replace(state, header=first)
            require_addable(self.path, asked, plan, data)
            require_room(asked, self._budget, whole, not_private_reason)
            require_accountable(asked, plan, whole)
            run = run or secrets.token_hex(8)
            if run in state.runs:
                raise validation.fail("run", run, "is in the ledger already", "use resume()")
            about = {
                "plan": plan.digest(),
                "steps": plan.total_steps,
                "delta": plan.delta,
                "adjacency": plan.adjacency,
                "data": dict(data),
                "not_private_reason": not_private_reason,
            }
            begun = opening("run", run, about, announcement(plan, 0, block))
            with _no_run_yet(self.path):
                if state.header is None:  # only now: a run that is refused settles nothing
                    enter(writer, state, first)
                enter(writer, state, begun)
            return Account(writer, state, run, plan, block)

    def resume(
        self,
        run: str,
        plan: Plan,
        data: Mapping[str, Any],
        *,
        block: int,
        anchor: Anchor,
        not_private_reason: str | None = None,
    ) -> Account:
        """Open a run again. It goes on after the last step that was charged.

        Args:
            run: its id.
            plan: its plan, which must be the same.
            data: what is declared about the data, which must be the same.
            block: steps charged at a time.
            anchor: the place in the ledger that the checkpoint remembers.
            not_private_reason: what `source.not_private_reason` says. One part of a run with known
                noise voids all of it.

        Returns:
            The account; `account.charged` steps are gone, taken or not.
        """
        if not self.path.exists():
            raise DataError.about(
                "ledger",
                self.path,
                "there is no such file, and this run began in one",
                "put it back, or give its new path",
            )
        with self._writing() as (writer, state):
            if not writer.reading.contains(anchor):
                raise DataError.about(
                    "ledger",
                    self.path,
                    (
                        f"must contain record {anchor.length} as the checkpoint remembers it, and "
                        "does not: it was cut or exchanged"
                    ),
                    "restore it from a copy",
                )
            found = state.runs.get(run)
            if found is None:
                raise DataError.about(
                    "run",
                    run,
                    f"is not in the ledger {str(self.path)!r}",
                    "use the ledger that it began with",
                )
            require_same_run(found, plan, data)
            rest = minus(cost(plan, plan.total_steps), cost(plan, found.charged))
            reason = found.not_private_reason or not_private_reason
            require_addable(self.path, state, plan, data)
            require_room(state, self._budget, rest, reason, resumed=True)
            about = {"not_private_reason": not_private_reason}
            following = announcement(plan, found.charged, block)
            enter(writer, state, opening("resume", run, about, following))
            return Account(writer, state, run, plan, block)

    @contextmanager
    def _writing(self) -> Iterator[tuple[Writer, LedgerState]]:
        """The lock and the state to go on from; an error inside the block gives the lock back."""
        writer = Writer(self.path)
        try:
            yield writer, self._repaired(writer)
        except BaseException:
            writer.close()
            raise

    def _state(self, reading: Reading) -> tuple[LedgerState, Record | None]:
        """The state the file leads to, and the record that its torn end stands for."""
        state = LedgerState()
        for number, record in enumerate(reading.records, 1):
            try:
                state.apply(record)
            except (KeyError, TypeError, ValueError):
                raise DataError.about(
                    "ledger",
                    self.path,
                    f"line {number} has a format that this version does not know",
                    "use the version of steppe that wrote it",
                ) from None
        if not reading.torn:
            return state, None
        repair = state.repair()
        state.apply(repair)
        return state, repair

    def _repaired(self, writer: Writer) -> LedgerState:
        """The state to go on from, with a torn end made whole on the disk."""
        state, repair = self._state(writer.reading)
        if repair is not None:
            writer.mend({**repair, "torn_bytes": len(writer.reading.torn)})
        return state


@contextmanager
def _no_run_yet(path: Path) -> Iterator[None]:
    """Inside the block, an error of the disk does not speak of a run that could be resumed."""
    try:
        yield
    except StorageError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise unwritable("ledger", path, error.__cause__) from error.__cause__
