"""A ledger that nothing was charged to yet."""

from pathlib import Path

import pytest

from steppe.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")
