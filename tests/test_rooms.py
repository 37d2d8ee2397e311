"""Rooms know each other through their front doors alone, and each says what it is for."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import steppe

ROOT = Path(steppe.__file__).parent
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"utils"}


def reaching_past(source: str, room: str) -> Iterator[str]:
    """The modules of other rooms that a module imports from without their `__init__`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("steppe."):
            other, *inside = (node.module or "").split(".")[1:]
            if inside and other in ROOMS - {room}:
                yield f"{node.module} in line {node.lineno}"


def test_no_module_reaches_past_a_front_door() -> None:
    found = {
        str(path.relative_to(ROOT)): past
        for path in ROOT.rglob("*.py")
        if path.parts[-2:] != ("papers", "__main__.py")
        and (past := [*reaching_past(path.read_text(), path.relative_to(ROOT).parts[0])])
    }
    assert found == {}


def test_the_check_sees_a_way_past_a_front_door() -> None:
    source = "from steppe.noise.gaussian import Gaussian"
    assert [*reaching_past(source, "plan")] == ["steppe.noise.gaussian in line 1"]
    assert not [*reaching_past(source, "noise")]


def test_every_room_says_what_it_is_for() -> None:
    silent = [
        room
        for room in sorted(ROOMS)
        if not ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text()))
    ]
    assert silent == []


def test_no_public_class_name_is_used_twice() -> None:
    names = Counter(
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    # One method: on private data a point, `steppe.SAM`; on public data `steppe.pretraining.SAM`.
    assert [name for name, count in names.items() if count > 1] == ["SAM"]
