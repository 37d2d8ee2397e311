"""`steppe report`: where the page goes, and bad input; the page has tests of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_calls import Shell

RESULT = {"table": [{"model": "last", "accuracy": 0.9, "loss": 0.3}], "steps": 3}


def a_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(RESULT))
    return folder


def test_a_run_has_its_page_in_its_folder(shell: Shell, tmp_path: Path) -> None:
    run = a_run(tmp_path / "first")
    assert shell.ok(f"report {run}") == f"{run / 'report.html'}\n"
    assert "<html" in (run / "report.html").read_text()


def test_a_comparison(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = a_run(tmp_path / "one"), a_run(tmp_path / "two")
    result = shell.json(f"report {one} {two}")
    assert result == {"report": "report.html", "runs": [str(one), str(two)]}
    assert shell.ok(f"report {one} {two} --out both.html") == "both.html\n"
    assert (tmp_path / "both.html").exists()


def test_no_run(shell: Shell, tmp_path: Path) -> None:
    assert shell.refused(f"report {tmp_path}") == (
        f"steppe: error: run={str(tmp_path)!r}: has no run in it; give the folder that training "
        "wrote.\n"
    )


def test_a_file_that_is_broken(shell: Shell, tmp_path: Path) -> None:
    run = a_run(tmp_path / "first")
    (run / "result.json").write_text("{")
    assert shell.refused(f"report {run}") == (
        f"steppe: error: file={str(run / 'result.json')!r}: is not JSON; restore it, or remove it "
        "to do without.\n"
    )


def test_a_folder_that_is_not_there(shell: Shell, tmp_path: Path) -> None:
    run, out = a_run(tmp_path / "first"), tmp_path / "nowhere" / "page.html"
    assert shell.refused(f"report {run} --out {out}") == (
        f"steppe: error: --out={str(out)!r}: lies in a folder that does not exist; make the folder "
        "first, or choose another.\n"
    )
