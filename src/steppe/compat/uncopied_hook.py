"""A hook that is not copied or pickled with its module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A module's hook that copies and pickles of the module do not contain.

    A copy has other weights and is not part of the run. The hook refers to objects that must not be
    copied, such as the source of noise.
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
