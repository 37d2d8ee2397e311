"""The ledger: the privacy cost of all runs on one data set."""

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
    empty_header,
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
    """An append-only, hash-chained file with the cost of all runs on one data set.

    A run holds the file's lock while it trains, and writes the cost of a block of steps before it
    takes the first of them. The ledger is public: it contains the plan's constants and what the
    owner declared about the data, but nothing that was computed from records, not even a hash,
    which would let anyone check a guess. One exception: if the population is not declared, the
    ledger contains the length of the data, also in the sampling rate.

    Args:
        path: the file; created by the first run, or by `create`.
        epsilon: a budget for all runs together. A run that exceeds it, or whose noise is known, is
            rejected before its first step. `create` or the first accepted run writes the budget
            into the ledger, where it cannot be changed.
        delta: the δ of that budget.

    Guarantees:
        A step that was begun is in the file, however the process ended. An edited or missing line
        is an error that names its number. Lines that were cut from the end are detected by
        checkpoints that store the length of the ledger, and not without them.

        An incomplete last line counts as the charge that the line before announced: at most one
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

    def create(self) -> Anchor:
        """Write a file with the budget and no run yet.

        The first run adds what all runs must share: the name of the data, the adjacency and the
        unit.

        Returns:
            The length and the hash of the new file.
        """
        if self._budget is None:
            raise validation.missing("epsilon", "give the budget of all runs together")
        with self._writing() as (writer, state):
            if state.header is not None or state.runs:
                rule = "is a ledger already, and its budget cannot be changed"
                raise validation.fail("ledger", self.path, rule, "use it, or name a new file")
            with _no_run_yet(self.path):
                enter(writer, state, empty_header(self._budget))
            anchor = writer.anchor
            writer.close()
        return anchor

    @property
    def budget(self) -> dict[str, float] | None:
        """The budget that the file has, as `epsilon` and `delta`; None without one."""
        header = self.state().header
        return None if header is None else header["budget"]

    def state(self) -> LedgerState:
        """The runs in the file and what they share."""
        return self._state(read(self.path))[0]

    def epsilon(self, delta: float) -> float:
        """The total ε of all runs at this δ, by PLD.

        Guarantees:
            An upper bound, also during a run and after a crash. Infinite once a run with seeded
            noise has taken a step.
        """
        self.require_file()
        return self.state().epsilon(delta)

    def require_file(self) -> None:
        """Require that the file exists. A misspelt name must not look as if nothing was spent."""
        if not self.path.exists():
            raise DataError.about(
                "ledger",
                self.path,
                "there is no such file, so the cost of earlier runs is unknown",
                "give the file that runs wrote, or start one",
            )

    def runs(self) -> dict[str, LedgerRun]:
        """Every run in the ledger, by its id, in the order in which they began."""
        return self.state().runs

    def anchor(self) -> Anchor:
        """The current length and last hash. Stored elsewhere, they show if lines are cut later."""
        return read(self.path).anchor

    def verify(self, earlier: Anchor | None = None) -> None:
        """Check every line of the file. What is wrong is an error.

        Args:
            earlier: an anchor that was stored elsewhere and must still be in the file.
        """
        reading = read(self.path)
        self._state(reading)
        if earlier is not None and not reading.contains(earlier):
            raise DataError.about(
                "ledger",
                self.path,
                f"does not contain line {earlier.length} of this anchor: it was cut or exchanged",
                "restore it from a copy",
            )

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
            data: what is declared about the data, as JSON. The `name` must be that of the ledger;
                `steppe.training` adds the population and the shape of a record.
            block: steps charged at a time; a crash loses at most this many.
            run: a unique id; None makes one.
            not_private_reason: that of the source; None if there is a budget.

        Returns:
            The account, which holds the ledger's lock until it is closed.
        """
        with self._writing() as (writer, state):
            first = self._first(state, plan, data)
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
                if not state.is_settled:  # only now: a rejected run must not begin a ledger
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
        """Resume a run after the last step that was charged.

        Args:
            run: its id.
            plan: its plan, which must be the same.
            data: what is declared about the data, which must be the same.
            block: steps charged at a time.
            anchor: of the ledger, as stored in the checkpoint.
            not_private_reason: that of the source. One part with known noise makes the whole run
                not private.

        Returns:
            The account; `account.charged` steps are charged, taken or not.
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
                        f"must contain record {anchor.length} with the hash in the checkpoint, and "
                        "does not: lines were cut or replaced"
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

    def _first(self, state: LedgerState, plan: Plan, data: Mapping[str, Any]) -> Record:
        """What the runs share: as the file has it, or as this run would write it."""
        if state.header is None:
            return header(plan, data, self._budget)
        if state.is_settled:
            return state.header
        return header(plan, data, state.header["budget"])

    @contextmanager
    def _writing(self) -> Iterator[tuple[Writer, LedgerState]]:
        """The lock and the state to go on from; an error inside the block gives the lock back."""
        writer = Writer(self.path)
        try:
            self._require_known_budget(writer.reading)
            yield writer, self._repaired(writer)
        except BaseException:
            writer.close()
            raise

    def _require_known_budget(self, reading: Reading) -> None:
        """Require that no budget was lost with an incomplete first line."""
        cut = b"" if reading.records else reading.torn
        if self._budget is None and (b'"budget":{' in cut or b'"data":null' in cut):
            raise DataError.about(
                "ledger",
                self.path,
                "has an incomplete first line, which had the budget of all runs",
                "restore it from a copy, or create it again with its budget",
            )

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
