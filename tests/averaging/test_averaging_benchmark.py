"""The benchmark of averages runs and prints its table."""

from __future__ import annotations

import pytest
import torch

from benchmarks import averaging


def test_the_running_averages_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert averaging.main(["--rounds", "1", "--no-windows"]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "| ten running averages |" in capsys.readouterr().out
