"""Runs that are one Gaussian answer are charged in stretches, which add up to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import steppe
from steppe import accounting
from steppe.ledger import Anchor, Ledger


def plan() -> steppe.Plan:
    """1,200 steps, so that most blocks lie between two marks of the account."""
    return steppe.Plan(
        noise_multiplier=2.0,
        delta=1e-5,
        population=6000,
        batch_size=10,
        noise=steppe.BLT(2),
        sampling=steppe.FixedOrder(2),
        adjacency="zero-out",
    )


def test_blocks_of_a_correlated_run_add_up(tmp_path: Path) -> None:
    ledger, run = Ledger(tmp_path / "ledger.jsonl"), plan()
    data = {"name": "data"}
    with ledger.begin(run, data, block=7, run="one") as account:
        for step in (1, 8, 300):
            account.cover(step)
            spent = ledger.epsilon(1e-5)
            assert spent >= run.epsilon_spent(account.charged) * (1 - 1e-9)
            assert spent <= run.epsilon_spent(min(1200, account.charged + 10)) * (1 + 1e-9)
        account.pause(250)
        anchor = account.anchor
    assert ledger.epsilon(1e-5) == pytest.approx(run.epsilon_spent(250), rel=1e-9)
    with ledger.resume("one", run, data, block=7, anchor=anchor) as account:
        account.cover(1200)
    assert ledger.epsilon(1e-5) == pytest.approx(run.epsilon_spent(), rel=1e-6)
    assert ledger.epsilon(1e-5) <= run.epsilon_spent() * (1 + 1e-9)
    # Another run composes, also one with Poisson sampling, which has another accountant.
    other = steppe.Plan(
        noise_multiplier=1.0,
        delta=1e-5,
        population=6000,
        batch_size=60,
        steps=50,
        adjacency="zero-out",
    )
    with ledger.begin(other, data, block=50) as account:
        account.cover(50)
    one = accounting.Segment(1.0, 2.0, 1)
    together = accounting.epsilon((one, *other.segments()), 1e-5, "zero-out")
    assert ledger.epsilon(1e-5) == pytest.approx(together, rel=1e-6)
    assert Anchor() != anchor
