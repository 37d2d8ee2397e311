"""Reading run folders: missing parts are missing, broken files are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import write_run

from steppe.errors import ConfigurationError, DataError
from steppe.report.run import read_run


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no run in it; give the folder that"):
        read_run(tmp_path)


def test_every_part_may_be_missing_but_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("plan.json", "config.json", "result.json", "statement.json"):
        (folder / name).unlink()
        read_run(folder)
    assert read_run(folder).epsilon is None


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("result.json", "{", "is not JSON"),
        ("result.json", "[]", "must hold a JSON object"),
        ("result.json", '{"table": [{"accuracy": 1}]}', "must have a table of rows that name"),
        ("config.json", "\ufeff{}", "is not JSON"),
        ("statement.json", "{}", "must have its items in words"),
        ("statement.json", '{"items": {}}', "must say whether the run is private"),
        ("figures.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, text: str, rule: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=rf"{file}'.*{rule}.*; restore it, or remove it"):
        read_run(folder)


def test_a_statement_of_another_plan_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "plan.json").write_text('{"digest": "0"}')
    with pytest.raises(DataError, match=r"statement\.json': is the statement of another plan"):
        read_run(folder)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "plan.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"plan\.json': is not text in UTF-8"):
        read_run(folder)


def test_half_lines_of_the_log_are_passed_over_and_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    whole = read_run(folder)
    text = (folder / "log.jsonl").read_text()
    (folder / "log.jsonl").write_text('{"kind": "eval\n' + text + '{"kind": "evaluation", "st')
    torn = read_run(folder)
    assert (whole.torn, torn.torn) == (0, 2)
    assert torn.evaluations == whole.evaluations


def test_of_two_evaluations_of_one_step_the_later_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    again = {"kind": "evaluation", "model": "last", "step": 585, "epsilon": 2, "accuracy": 0.5}
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(again) + "\n")
    found = [e for e in read_run(folder).evaluations if (e.model, e.step) == ("last", 585)]
    assert [e.scores for e in found] == [{"accuracy": 0.5}]


def test_a_result_that_spent_more_than_was_promised_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "epsilon": 2.5}))
    assert read_run(folder).epsilon == 2.5


def test_a_result_that_says_not_private_is_not(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "not_private_reason": "a seed"}))
    assert read_run(folder).epsilon is None
