"""docs/command-line.md: every command on it runs and prints what the page says."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from cli_calls import Shell, every_parser

from steppe.cli import main as cli

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
SESSIONS = re.findall(r"^```console\n\$ steppe (.+?)\n(.*?)^```$", PAGE, re.M | re.S)
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize(("line", "expected"), SESSIONS, ids=[line for line, _ in SESSIONS])
def test_every_session_prints_what_the_page_says(
    line: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(shlex.split(line)) == 0
    found = capsys.readouterr().out
    assert doctest.OutputChecker().check_output(expected, found, SAME), found


def test_every_command_is_on_the_page(shell: Shell) -> None:
    listed = re.findall(r"^    (\w+) ", shell.ok("--help"), re.M)
    on_the_page = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert listed == on_the_page


def test_every_option_on_the_page_exists() -> None:
    helps = [one.format_help() for one in every_parser()]
    for option in set(re.findall(r"`(--[\w-]+)", PAGE)) - {"--help"}:
        assert any(option in text for text in helps), option
