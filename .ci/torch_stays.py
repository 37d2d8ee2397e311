"""No extra moves torch: ask pip what each one would install, with no constraints to hold it back.

A newer torch brings gigabytes of CUDA and torchvision drags one in, so an extra that lists either
is a mistake. Exits with status 1 and names the extra.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "torchvision", "torchaudio")


def extras() -> list[str]:
    """The extras that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project.get("optional-dependencies", {}))


def moved(names: Iterable[str]) -> list[str]:
    """Those of the packages that must not be installed by an extra.

    Examples:
        >>> moved(["opacus", "Torch", "nvidia-cublas-cu12"])
        ['Torch', 'nvidia-cublas-cu12']
    """
    plain = {name: name.lower().replace("_", "-") for name in names}
    return [name for name in plain if plain[name] in HEAVY or plain[name].startswith("nvidia-")]


def would_install(chosen: Iterable[str]) -> list[str]:
    """What pip would install for these extras beside what is already there."""
    wanted = f".[{','.join(chosen)}]"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--report", "-", "--quiet"]
    # A constraints file in the environment would hide exactly what this looks for.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(  # noqa: S603 - the arguments are ours
        [*command, "--disable-pip-version-check", wanted],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"pip cannot resolve {wanted}:\n{done.stderr.strip()}")
    return [item["metadata"]["name"] for item in json.loads(done.stdout)["install"]]


def main() -> int:
    """One call for all extras together; one each only where that finds something."""
    names = extras()
    together = moved(would_install(names))
    guilty = 0
    for name in names:
        found = moved(would_install([name])) if together else []
        guilty += bool(found)
        print(f"{name}: would install {', '.join(found)}" if found else f"{name}: torch stays")
    if together and not guilty:
        print(f"{', '.join(names)} together: would install {', '.join(together)}")
    return 1 if together else 0


if __name__ == "__main__":
    sys.exit(main())
