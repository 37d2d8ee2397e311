"""The command line of stored benchmarks: what is kept of it, and when it ends early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import stored
from steppe.papers.experiment import Column, Experiment

COIN = Experiment(
    name="coin",
    paper="Nobody",
    item="Table 0",
    settings={"fair": {"p": 0.5}},
    seeds=(0, 1),
    measure=lambda constants, seed: {"mean": constants["p"]},
    columns=(Column("mean"),),
    expected="one half",
    minutes=1.0,
)


def test_a_stored_command_names_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["--settings", "fair", "--results", str(tmp_path), "--seeds", "1", "--threads", "1"]
    assert stored.show(COIN, "coin", None, typed) == 0
    assert "| fair" in capsys.readouterr().out
    (run,) = json.loads((tmp_path / "coin.json").read_text())["runs"]
    assert run["command"] == "python -m benchmarks.coin --settings fair --seeds 1 --threads 1"
    assert str(tmp_path) not in (tmp_path / "coin.json").read_text()


def test_time_that_is_used_up_is_an_exit_status(tmp_path: Path) -> None:
    typed = ["--results", str(tmp_path), "--minutes", "0.01", "--threads", "1"]
    assert stored.show(COIN, "coin", None, typed) == 3
    assert not (tmp_path / "coin.json").exists()
