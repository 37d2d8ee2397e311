"""kill -9 at many points of a real training process: no step is ever missing from the ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_runs import BLOCK
from training_cases import STEPS

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A kill leaves what the kernel has, on a disk as in memory, where syncing takes no time."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


def killed(folder: Path, way: str, number: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_runs.py"), str(folder), way, str(number)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(found: list[dict[str, Any]], kills: int) -> None:
    dead = [line for line in found if "end" not in line]
    ends = [line for line in found if "end" in line]
    assert len(dead) >= kills
    for line in dead:
        assert line["begun"] <= line["charged"] <= STEPS, line
    for run in ends:  # each was resumed to the end of its plan, whatever had happened to it
        assert run["begun"] <= run["charged"] == STEPS, run
    # The kills hit the middle of runs, and what a kill costs is bounded.
    assert len({line["begun"] for line in dead}) > 5
    for run in ends:
        times = sum(line["run"] == run["run"] for line in dead)
        assert run["charged"] - run["begun"] <= times * BLOCK, run


@pytest.mark.slow
def test_kills_at_random_moments(folder: Path) -> None:
    check(killed(folder, "moments", 36), 30)


@pytest.mark.slow
def test_kills_inside_every_kind_of_write(folder: Path) -> None:
    check(killed(folder, "calls", 25), 20)


@pytest.mark.slow
def test_a_system_that_refuses_to_write(folder: Path) -> None:
    found = killed(folder, "full", 5)
    refused = [line for line in found if line.get("said")]
    assert len(refused) >= 3
    for line in refused:
        assert line["said"].startswith("StorageError(")
        assert "File too large" in line["said"] or "No space left" in line["said"]
        assert "make room" in line["said"]
        assert line["begun"] <= line["charged"], line
    assert {line["begun"] for line in refused} > {0}  # some before the first step, some later
    for line in found:
        if "end" in line:
            assert line["begun"] <= line["charged"] == STEPS, line


def test_the_check_can_fail() -> None:
    good = [{"run": f"run{i}", "begun": i, "charged": i + 1} for i in range(8)]
    check(good, 8)
    for bad in (
        {"run": "run9", "begun": 5, "charged": 4},  # a step that the ledger does not know
        {"run": "run9", "begun": 5, "charged": STEPS + 1},  # more than the plan has
        {"run": "run9", "end": True, "begun": 5, "charged": STEPS - 1},  # not resumed to the end
        {"run": "run9", "end": True, "begun": 5, "charged": STEPS},  # charged without a reason
    ):
        with pytest.raises(AssertionError):
            check([*good, bad], 8)
