"""`import steppe` is light, its names are complete, and the tests can fail."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import steppe

HEAVY = ("scipy", "dp_accounting", "matplotlib", "opacus", "cryptography", "pandas", "sklearn")
EVERY_NAME = "import steppe; [getattr(steppe, name) for name in dir(steppe)]"


def loaded_by(statement: str, watched: tuple[str, ...] = HEAVY) -> set[str]:
    code = f"import sys; {statement}; print(*[m for m in {watched!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_steppe_does_not_wait_for_torch() -> None:
    assert loaded_by("import steppe", ("torch", "numpy", *HEAVY)) == set()


def test_using_every_public_name_loads_none_of_the_heavy_packages() -> None:
    assert loaded_by(EVERY_NAME, ("torch", *HEAVY)) == {"torch"}


def test_the_check_sees_a_heavy_package() -> None:
    assert "scipy" in loaded_by("import steppe, scipy")


def test_type_checkers_and_the_table_of_homes_know_the_same_names() -> None:
    tree = ast.parse(Path(steppe.__file__).read_text())
    typed = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("steppe.")
        for alias in node.names
    }
    assert typed == steppe._HOMES


def test_a_star_brings_the_public_names_and_nothing_else() -> None:
    names: dict[str, object] = {}
    exec("from steppe import *", names)  # noqa: S102 - a star is allowed at the top level alone
    del names["__builtins__"]
    assert names == {name: getattr(steppe, name) for name in steppe._HOMES}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'steppe' has no attribute 'Plann'"):
        steppe.Plann  # noqa: B018 - looking it up is the test
