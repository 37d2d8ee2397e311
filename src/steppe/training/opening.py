"""Opens the ledger for a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from steppe.accounting import Statement
from steppe.ledger import Account, Anchor, LedgerRun
from steppe.training.ledger_summary import runs_before
from steppe.training.parts import RunParts
from steppe.utils import validation


@dataclass(frozen=True)
class OpenRun:
    """A run that has locked its ledger.

    Args:
        account: charges the steps.
        statement: the privacy statement; NOT PRIVATE if any part of the run had seeded noise.
        named_ledger: the `path` of a named ledger, and how many runs were charged `before` this
            one; empty if the run has its own ledger.
    """

    account: Account
    statement: Statement
    named_ledger: Mapping[str, Any]


@contextmanager
def opened(parts: RunParts, run: str, anchor: Anchor) -> Iterator[OpenRun]:
    """Lock the ledger and begin or resume a run in it.

    Args:
        parts: of the run.
        run: its id.
        anchor: of the ledger, stored in the newest checkpoint.
    """
    data = parts.fingerprint["data"]
    options: dict[str, Any] = {
        "block": parts.intervals.block,
        "not_private_reason": parts.statement.not_private_reason,
    }
    with validation.called(parts.origin.keys):
        known = parts.ledger.runs()
        if run in known or anchor.length:
            account = parts.ledger.resume(run, parts.plan, data, anchor=anchor, **options)
        else:
            account = parts.ledger.begin(parts.plan, data, run=run, **options)
    with account:
        reason = account.run.not_private_reason
        statement = replace(parts.statement, not_private_reason=reason)
        yield OpenRun(account, statement, named_ledger(parts, known, run))


def named_ledger(parts: RunParts, known: Mapping[str, LedgerRun], run: str) -> dict[str, Any]:
    """The value of `OpenRun.named_ledger`.

    Args:
        parts: of the run.
        known: the runs in the ledger.
        run: the id of the run, which may not be in the ledger yet.
    """
    if not parts.ledger_is_named:
        return {}
    return {"path": str(parts.ledger.path.resolve()), "before": runs_before(known, run)}
