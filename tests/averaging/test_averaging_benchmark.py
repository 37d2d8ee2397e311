"""The benchmark of averages runs and prints its table."""

from __future__ import annotations

import pytest

from benchmarks import averaging


def test_the_running_averages_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert averaging.main(["--rounds", "1", "--no-windows"]) == 0
    assert "| ten running averages |" in capsys.readouterr().out
