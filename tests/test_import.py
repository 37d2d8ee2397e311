"""`import steppe` is light, and the test can fail."""

import subprocess
import sys

HEAVY = ("scipy", "dp_accounting", "matplotlib", "opacus", "cryptography", "pandas", "sklearn")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_steppe_loads_none_of_the_heavy_packages() -> None:
    assert loaded_by("import steppe") == set()


def test_the_check_sees_a_heavy_package() -> None:
    assert "scipy" in loaded_by("import steppe, scipy")
