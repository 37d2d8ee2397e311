"""The form that arguments of a trainer must have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from steppe.plan import Plan
from steppe.training.callbacks import Callback
from steppe.utils import validation

ISOLATION = ("proven", "each", "probed")
"""What `isolation` can be asked to be, the default first."""


def require_kinds(model: Any, plan: Any, optimizer: Any) -> None:
    """Refuse a model, a plan or an optimizer that is none."""
    for name, value, kind in (
        ("model", model, nn.Module),
        ("plan", plan, Plan),
        ("optimizer", optimizer, Optimizer),
    ):
        if not isinstance(value, kind) and not (name == "optimizer" and value is None):
            rule = f"must be a {kind.__module__.partition('.')[0]} {kind.__name__}"
            raise validation.fail(name, type(value).__name__, rule, "pass one")


def callbacks(given: Any) -> tuple[Callback, ...]:
    """A list of functions of a `StepInfo`.

    Examples:
        >>> callbacks([5])
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: callbacks=5: is not a function; give functions of a ...
    """
    for one in (found := several("callbacks", given)):
        if not callable(one):
            remedy = "give functions of a `StepInfo`"
            raise validation.fail("callbacks", one, "is not a function", remedy)
    return found


def several(name: str, given: Any) -> tuple[Any, ...]:
    """A list or the like, and not one thing alone."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise validation.fail(name, type(given).__name__, "must be a list", f"write {name}=[…]")
    return tuple(given)


def texts(name: str, given: Any) -> tuple[str, ...]:
    """Sentences; one alone is a list of one."""
    found = (given,) if isinstance(given, str) else several(name, given)
    return tuple(text(name, one) for one in found)


def text(name: str, given: Any) -> str:
    """Words, and not a path or another object that reads like them."""
    if not isinstance(given, str):
        raise validation.fail(name, given, "must be text", f'write {name}="…"')
    return given


def isolation(name: str, given: Any) -> str:
    """How it is known that records do not influence each other.

    Args:
        name: what it is called where it was given.
        given: one of `ISOLATION`.

    Examples:
        >>> isolation("train.isolation", "probe")
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: train.isolation='probe': must be one of 'proven', ...
    """
    return validation.one_of(name, given, ISOLATION)
