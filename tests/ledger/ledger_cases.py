"""A plan, its data, and a run that is charged."""

from __future__ import annotations

from steppe import Plan
from steppe.ledger import Ledger

DATA = {"name": "patients", "population": 1000}


def plan(**changes: object) -> Plan:
    constants = {
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "population": 1000,
        "batch_size": 50,
        "steps": 20,
    }
    return Plan(**{**constants, **changes})  # type: ignore[arg-type]


def charge(ledger: Ledger, step: int, block: int = 8, of: Plan | None = None) -> str:
    with ledger.begin(of or plan(), DATA, block=block) as account:
        account.cover(step)
        return account.run.id
