"""Every code block of the documentation runs, prints what it says, and every name exists.

Python blocks of one page share their names, from top to bottom. A text block right after a code
block is its output, compared as doctests are: white space counts once, `...` stands for anything.
A diff block is two programs, before and after; both must run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")
] + sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)
# What `make bench` writes is not there before it has run.
PATH = re.compile(r"`((?:src|tests|docs|examples|benchmarks(?!/results)|\.ci)/[\w./-]+)`")
# A path inside the package, also without `src/`: `src/steppe/step.py`, `steppe/step.py`.
SOURCE = re.compile(r"(?<![\w./-])(?:src/)?(steppe/[\w/]+\.(?:py|c|h))\b")
# A name after `steppe.`, in code or in prose. The last part of `steppe.noise.Gaussian(` is called.
NAME = re.compile(r"(?<![\w./`-])`?(steppe(?:\.\w+)+)")
BEFORE_A_RENAME = re.compile(r"(?<=\n\| before \| now \|\n).*?(?=\n\n|\Z)", re.S)
# Pages about another library run where it is installed.
NEEDED = {"hugging-face.md": ("transformers", "peft")}
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    output: str

    def sides(self) -> tuple[str, str]:
        """The two programs of a diff: before and after."""
        lines = self.code.splitlines()
        before, after = (
            "\n".join(line[2:] for line in lines if not line.startswith(sign)) for sign in "+-"
        )
        return before, after


def require_extra(page: Path) -> None:
    for library in NEEDED.get(page.name, ()):
        pytest.importorskip(library, reason=f"the page needs {library}, an extra")


def blocks(page: Path) -> list[Block]:
    return [Block(*(part or "" for part in found)) for found in FENCE.findall(page.read_text())]


def printed(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<documentation>", "exec", dont_inherit=True), names)  # noqa: S102 - our own pages
    return out.getvalue()


def check(block: Block, found: str) -> None:
    if block.output and not doctest.OutputChecker().check_output(block.output, found, SAME):
        raise AssertionError(f"the page says:\n{block.output}\nthe code printed:\n{found}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs_and_prints_what_it_says(page: Path) -> None:
    require_extra(page)
    names: dict[str, Any] = {"__name__": "documentation"}
    for block in blocks(page):
        if block.language == "python" and not block.code.startswith(">>>"):  # those are doctests
            check(block, printed(block.code, names))
        elif block.language == "diff":
            before, after = block.sides()
            printed(before, {"__name__": "before"})
            check(block, printed(after, {"__name__": "after"}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not missing


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or what is found in one by its attributes."""
    head, *rest = name.split(".")
    found = import_module(head)
    for part in rest:
        if not hasattr(found, part):
            try:
                import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


def unknown(text: str) -> Iterator[str]:
    """The paths and dotted names of our package in a text that are not there."""
    text = BEFORE_A_RENAME.sub(lambda table: re.sub(r"(?m)^\|[^|]*", "", table[0]), text)
    for path in SOURCE.findall(text):
        if not (ROOT / "src" / path).exists():
            yield path
    for name in NAME.findall(text):
        if not exists(name):
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_name_exists(page: Path) -> None:
    require_extra(page)
    assert [*unknown(page.read_text())] == []


def test_a_name_that_is_gone_is_found() -> None:
    text = "`src/steppe/plan.py`, `steppe.noise.Gaussian` and `steppe.clipping.inspect(model)`"
    assert [*unknown(text)] == ["steppe/plan.py", "steppe.clipping.inspect"]


def anchors(page: Path) -> set[str]:
    """What links may point to: headings in lower case, without punctuation, joined by hyphens."""
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(page.read_text())
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_linked_heading_exists(page: Path) -> None:
    missing = [
        f"{other}#{anchor}"
        for other, anchor in ANCHOR.findall(page.read_text())
        if anchor not in anchors(page.parent / other if other else page)
    ]
    assert not missing


def test_the_map_of_rooms_is_the_contract() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = configuration["tool"]["importlinter"]["contracts"]
    layers = [
        [room.strip().removeprefix("steppe.") for room in layer.split("|")]
        for layer in contract["layers"]
    ]
    design = (ROOT / "docs" / "design.md").read_text()
    section = design.partition("## Rooms and layers\n")[2].partition("\n## ")[0]
    figure, _, table = section.partition("```text\n")[2].partition("```")
    assert [line.split() for line in figure.splitlines()] == layers
    named = set(re.findall(r"`((?:\w+/)+|\w+\.py)`", table)) - {"federated/"}
    named -= {"tests/", "benchmarks/"}
    missing = [name for name in named if not (ROOT / "src" / "steppe" / name).exists()]
    assert not missing
    rooms = {name.partition("/")[0].removesuffix(".py") for name in named}
    assert rooms == {room for layer in layers for room in layer}


def test_the_quick_start_is_the_example() -> None:
    (diff,) = [block for block in blocks(ROOT / "README.md") if block.language == "diff"]
    example = (ROOT / "examples" / "own_loop.py").read_text()
    _, after = diff.sides()
    assert after.strip() == example.split('"""', 2)[2].strip()


def test_the_check_can_fail() -> None:
    with pytest.raises(AssertionError, match="the code printed"):
        check(Block("python", "print(1)", "2\n"), printed("print(1)", {}))
