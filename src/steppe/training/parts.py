"""What a trainer is given, in the form that it expects, before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from steppe.averaging import Keep
from steppe.plan import Plan
from steppe.training.callbacks import Callback
from steppe.utils import validation

# A crash costs the steps since the last checkpoint: at most a twentieth of the plan.
_CHECKPOINTS = 20
_EVALUATIONS = 10
_LONGEST_BLOCK = 50
LEVELS = ("proven", "each", "probed")
"""What `isolation` can be asked to be, the usual one first."""


def require_parts(model: Any, plan: Any, optimizer: Any) -> None:
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
    """A list of functions of a moment.

    Examples:
        >>> callbacks([5])
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: callbacks=5: is no function; give functions of a `Moment`.
    """
    for one in (found := several("callbacks", given)):
        if not callable(one):
            raise validation.fail(
                "callbacks", one, "is no function", "give functions of a `Moment`"
            )
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
    """How it is to be known that records stand alone.

    Args:
        name: what it is called where it was given.
        given: one of `LEVELS`.

    Examples:
        >>> isolation("train.isolation", "probe")
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: train.isolation='probe': must be one of 'proven', ...
    """
    return validation.one_of(name, given, LEVELS)


def checkpoint_every(given: Any, steps: int) -> int:
    """How often to write a resumable checkpoint in a run of so many steps."""
    return _every("checkpoint_every", given, steps, _CHECKPOINTS)


def evaluate_every(given: Any, steps: int) -> int:
    """How often to evaluate in a run of so many steps."""
    return _every("evaluate_every", given, steps, _EVALUATIONS)


def _every(name: str, given: Any, steps: int, share: int) -> int:
    return max(1, steps // share) if given is None else validation.positive_integer(name, given)


def block(given: Any, checkpoint_every: int) -> int:
    """How many steps to charge at a time, where checkpoints come so often."""
    if given is None:
        return min(checkpoint_every, _LONGEST_BLOCK)
    return validation.positive_integer("block", given)


def store_every(given: Any, steps: int) -> int | None:
    """How often to store a checkpoint in a run of so many steps."""
    if given is None:
        return None
    every = validation.positive_integer("store_every", given)
    if every > steps:
        rule = f"would store no checkpoint in the {steps} steps of the plan"
        raise validation.fail("store_every", every, rule, f"give at most {steps}, or leave it out")
    return every


def keep(given: Any, store_every: int | None) -> Keep | None:
    """Which stored checkpoints stay."""
    if given is None:
        return None
    if not isinstance(given, Keep):
        raise validation.fail("keep", given, "must be a steppe.averaging.Keep", "use Keep(last=20)")
    if store_every is None:
        rule = "chooses among stored checkpoints, and none are stored"
        raise validation.fail("keep", given, rule, "set store_every, or leave it out")
    return given
