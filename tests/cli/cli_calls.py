"""How the tests call the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import pytest

from steppe.cli import main
from steppe.cli.main import parser


class Shell:
    """Runs commands in this process and keeps what they print apart.

    Args:
        capsys: pytest's own.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str, *more: str) -> tuple[int, str, str]:
        """Exit code, output, errors of a command line; `more` are words with blanks in them."""
        self._capsys.readouterr()
        code = main([*line.split(), *more])
        out, err = self._capsys.readouterr()
        return code, out, err

    def ok(self, line: str, *more: str) -> str:
        """The output of a command that must succeed in silence."""
        code, out, err = self(line, *more)
        assert (code, err) == (0, "")
        return out

    def json(self, line: str, *more: str) -> Any:
        """The parsed output of a command with --json."""
        return json.loads(self.ok(f"{line} --json", *more))

    def refused(self, line: str, *more: str) -> str:
        """The one message of a command that must refuse its input."""
        code, out, err = self(line, *more)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err


def every_parser() -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands that do something."""

    def below(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        groups = [a for a in one._actions if isinstance(a, argparse._SubParsersAction)]
        if not groups:
            yield one
        for group in groups:
            for child in group.choices.values():
                yield from below(child)

    yield from below(parser())
