"""Two trees measure themselves in turn, and their ratios are compared turn by turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import against


def test_turns_are_compared_in_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def ratios(tree: Path, models: str, rounds: int) -> dict[str, float]:
        order.append(tree.name)
        return {"c (128)": 0.9 if tree == against.ROOT else 1.0}

    monkeypatch.setattr(against, "ratios", ratios)
    monkeypatch.setattr(against, "commit_of", lambda tree: tree.name)
    path = tmp_path / "against.json"
    assert against.main(["--before", str(tmp_path), "--turns", "2", "--output", str(path)]) == 0
    assert order == [against.ROOT.name, tmp_path.name, tmp_path.name, against.ROOT.name]
    stored = json.loads(path.read_text())
    row = stored["ratio to plain training"]["c (128)"]
    assert row == {"now": [0.9, 0.9], "before": [1.0, 1.0], "now over before": 0.9}
    assert str(tmp_path) not in stored["command"]
    assert "c (128)" in capsys.readouterr().out
