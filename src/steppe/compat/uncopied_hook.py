"""A hook that stays with the module it was registered on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A module's hook that copies and saved files of the module do not inherit.

    A copy has other weights and is trained by nobody, so tracing it would mean nothing; and what
    the hook refers to, the source of noise above all, must not be copied.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _nothing, ()


def _nothing() -> Callable[..., None]:
    return nothing


def nothing(*args: Any) -> None:
    """Do nothing."""
