"""`steppe demo`: the table and the paths; the demo itself has tests of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_calls import Shell

from steppe import demo
from steppe.models import Patches


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"place": "steppe.demo:pictures", "classes": 10}
    task = demo.Task("A test. SYNTHETIC DATA.", data, synthetic=True)
    monkeypatch.setattr(demo, "_RECORDS", 600)
    monkeypatch.setattr(demo, "_HELD_OUT", 50)
    monkeypatch.setitem(Patches.fit.__kwdefaults__, "pictures", 1_500)  # type: ignore[arg-type]
    monkeypatch.setattr(demo, "digits", lambda: task)


def test_the_table_and_the_report(shell: Shell, tmp_path: Path) -> None:
    code, out, _ = shell(f"demo --run {tmp_path / 'run'}")
    assert code == 0
    assert out.startswith("A test. SYNTHETIC DATA.\n")
    for name in ("last", "SWA", "EMA", "UPA", "PDA", "OPA", "OMV"):
        assert re.search(rf"^{name} .*\d+\.\d\d % +2\.000 +\d+\.\d s$", out, re.M), name
    assert re.search(r"^model +accuracy +ε +time$", out, re.M)
    assert re.search(r"^batch_size +\d+ +large, so that many records share", out, re.M)
    assert out.endswith(f"report: {tmp_path / 'run' / 'report.html'}\n")


def test_json(shell: Shell, tmp_path: Path) -> None:
    code, out, _ = shell(f"demo --json --epsilon 4 --run {tmp_path / 'run'}")
    result = json.loads(out)
    assert code == 0
    assert result["synthetic"] is True
    assert 3.9 < result["epsilon"] <= 4.0
    assert Path(result["report"]).exists()
    assert len(result["models"]) == 7
    assert all(row["seconds"] > result["seconds"] for row in result["models"])


def test_bad_budget(shell: Shell) -> None:
    code, _, err = shell("demo --epsilon 0")
    assert code == 2
    assert err == ("steppe: error: --epsilon=0.0: must be finite and above 0.\n")


def test_a_folder_that_is_taken(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    code, _, err = shell(f"demo --run {tmp_path / 'run'}")
    assert code == 2
    assert err == (
        f"steppe: error: --run={str(tmp_path / 'run')!r}: is there already; name a new folder.\n"
    )
