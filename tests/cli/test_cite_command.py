"""`steppe cite`: BibTeX of a run and of methods by name; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_calls import Shell


def test_methods(shell: Shell) -> None:
    out = shell.ok("cite --methods SAT,EMA")
    for key in ("abadi2016deep", "park2023differentially", "shejwalkar2025recycling"):
        assert out.count(f"{{{key},") == 1
    assert shell.json("cite --methods SAT,EMA")["bibtex"] == out.removesuffix("\n")


def test_a_run(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"citation": "@misc{some,}"}))
    assert shell.ok(f"cite {tmp_path}") == "@misc{some,}\n"


def test_an_unknown_method(shell: Shell) -> None:
    message = shell.refused("cite --methods SAT,Sam")
    assert message.startswith("steppe: error: --methods='Sam': must be one of 'CappedPoisson', ")
    assert message.endswith("; use the name of the class.\n")


def test_a_folder_that_is_no_run(shell: Shell, tmp_path: Path) -> None:
    assert shell.refused(f"cite {tmp_path}") == (
        f"steppe: error: run={str(tmp_path)!r}: its result.json cannot be read (No such file or "
        "directory); name a run that has ended.\n"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", "{broken"])
def test_a_result_without_citation(shell: Shell, tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert shell.refused(f"cite {tmp_path}") == (
        f"steppe: error: run={str(tmp_path)!r}: its result.json holds no citation; name a run that "
        "has ended.\n"
    )


def test_neither_run_nor_methods(shell: Shell) -> None:
    assert shell.refused("cite") == (
        "steppe cite: error: one of the arguments RUN --methods is required\nSee steppe cite "
        "--help.\n"
    )
