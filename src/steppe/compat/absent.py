"""Names of Opacus without a counterpart: importing one says which line to change, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def refusing(module: str, reasons: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose names are absent.

    Args:
        module: its name.
        reasons: what to do instead, by name.
    """

    def absent(name: str) -> Any:
        if name not in reasons:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ImportError(f"{module.removeprefix('steppe.')}.{name}: {reasons[name]}.", name=module)

    return absent


ONE_PROCESS = (
    "is not offered, because steppe.compat trains in one process; leave the wrapper out and pass "
    "the plain module to make_private"
)
NOT_WRAPPED = (
    "is not offered, because module and optimizer are never wrapped; call "
    "PrivacyEngine().make_private() with the plain module and optimizer"
)
