"""The command line as a whole: quick help, exit codes, no tracebacks."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import pytest
from cli_calls import Shell, every_parser

from steppe import errors
from steppe.cli.main import parser

COMMANDS = list(every_parser())


def processor_seconds(*words: str) -> float:
    """What a command needs when nothing else runs: the tests may share the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "steppe", *words], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_help_is_quick() -> None:
    assert min(processor_seconds("--help") for _ in range(5)) < 0.3


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from steppe.cli import main; main(['budget', '--help']); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.prog)
def test_every_help_has_an_example_of_itself(one: argparse.ArgumentParser) -> None:
    text = one.format_help()
    assert "\nexamples:\n" in text
    assert one.prog in text.split("\nexamples:\n")[1]


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.prog)
def test_every_command_has_json(one: argparse.ArgumentParser) -> None:
    assert "--json" in one.format_help()


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.prog)
def test_examples_are_command_lines_that_parse(one: argparse.ArgumentParser) -> None:
    text = one.format_help().split("\nexamples:\n")[1].replace("\\\n", " ")
    for line in text.strip().splitlines():
        words = line.split()
        assert words[0] == "steppe"
        parser().parse_args(words[1:])


def test_no_command_prints_the_help(shell: Shell) -> None:
    assert shell.ok("") == shell.ok("--help")
    codes = "1 a check failed or work is left, 2 bad input, 70 a bug in steppe, 130 interrupted"
    assert codes in shell.ok("")


def test_a_group_without_a_command_prints_its_help(shell: Shell) -> None:
    assert shell.ok("data") == shell.ok("data --help")


def test_version(shell: Shell) -> None:
    assert shell.ok("--version") == "steppe 0.1.0\n"


def test_unknown_command(shell: Shell) -> None:
    message = shell.refused("buget")
    assert message.startswith("steppe: error: argument COMMAND: invalid choice: 'buget'")
    assert message.endswith("See steppe --help.\n")


def test_options_are_not_abbreviated(shell: Shell) -> None:
    # The option that was probably meant, and the help of the command that has it.
    assert shell.refused("plan run.toml --jso") == (
        "steppe plan: error: --jso: is not a known argument; did you mean --json?\n"
        "See steppe plan --help.\n"
    )
    assert "--quiet=1 --fast: is not a known argument; leave it out." in shell.refused(
        "plan run.toml --quiet=1 --fast"
    )
    assert "did you mean --version?" in shell.refused("--vresion")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.DataError("x=1: must be 2; use 2."), 2, "steppe: error: x=1: must be 2; use 2.\n"),
        (
            FileNotFoundError(2, "No such file", "a.toml"),
            2,
            "steppe: error: file='a.toml': No such file; check that it exists and that you "
            "have access.\n",
        ),
        (OSError(28, "No space left on device"), 2, "steppe: error: No space left on device\n"),
        (KeyboardInterrupt(), 130, "steppe: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_happens_becomes_an_exit_code(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr("steppe.citations.bibtex_of", fail)
    assert shell("cite --methods SAT") == (code, "", message)


def test_a_programming_error_is_not_hidden_and_no_failed_check(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("steppe.citations.bibtex_of", fail)
    code, out, err = shell("cite --methods SAT")
    assert (code, out) == (70, "")
    assert err.startswith("Traceback ")
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize("words", ["--help", "cite --methods SAT"])
def test_a_reader_that_leaves_early_is_no_error(words: str) -> None:
    command = f"{sys.executable} -m steppe {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
