"""Every example runs as it stands, learns, and stays inside its budget."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_learns_within_its_budget(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    accuracy, epsilon = (re.search(rf"{name} (\d\.\d+)", out) for name in ("accuracy", "ε ="))
    assert accuracy
    assert epsilon
    assert float(accuracy[1]) > 0.9
    assert 1.99 <= float(epsilon[1]) <= 2.0


def test_there_are_examples() -> None:
    assert [path.stem for path in EXAMPLES] == ["opacus_loop", "own_loop"]
