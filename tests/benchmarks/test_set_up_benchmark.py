"""The time of set-up is taken for two trees by turns, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import set_up
from steppe import models


def test_models_are_known_by_name() -> None:
    assert set(set_up.MODELS) - {"mlp", "cnn", "bert-base"} <= set(models.names())


def test_the_command_stores_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "set_up.json"
    typed = ["--models", "logistic", "--rounds", "1", "--batch", "8", "--output", str(path)]
    assert set_up.main([*typed, "--before", str(set_up.ROOT)]) == 0
    stored = json.loads(path.read_text())
    found = stored["logistic"]
    assert str(set_up.ROOT) not in path.read_text()
    for tree in (set_up.NOW, set_up.BEFORE):
        assert 0 < found[tree]["seconds"] < 60
        steps = found[tree]["seconds"] / found["plain_step"]
        assert found[tree]["plain_steps"] == pytest.approx(steps, rel=0.2)
    assert "logistic" in capsys.readouterr().out


def test_a_tree_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "src" / "steppe").mkdir(parents=True)
    (tmp_path / "src" / "steppe" / "__init__.py").write_text("raise RuntimeError('not this one')")
    with pytest.raises(RuntimeError, match=r"logistic in .*not this one"):
        set_up.of_process("logistic", tmp_path, 8)


def test_the_least_of_all_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    times = iter((3.0, 9.0, 8.0, 2.0))

    def one(name: str, tree: Path, batch: int) -> dict[str, float]:
        asked.append(tree)
        return {"set_up": next(times), "step": 0.5}

    monkeypatch.setattr(set_up, "of_process", one)
    a, b = Path("a"), Path("b")
    found = set_up.measure("mlp", {"now": a, "before": b}, 2, 8)
    assert asked == [a, b, b, a]
    assert found["now"] == {"seconds": 2.0, "plain_steps": 4.0}
    assert found["before"] == {"seconds": 8.0, "plain_steps": 16.0}
