"""What a user's model raises, as a message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steppe.errors import SteppeError, UnsupportedModelError
from steppe.utils import validation

# What torch raises when shapes or types do not fit. Anything else is a bug with a traceback.
_RAISED = (RuntimeError, TypeError, ValueError, IndexError)


@contextmanager
def errors_of_model(name: str, value: Any, remedy: str) -> Iterator[None]:
    """Inside the block a model runs on records that it may not fit.

    Args:
        name: the argument to blame.
        value: its value.
        remedy: what to do.
    """
    try:
        yield
    except (SteppeError, *_RAISED) as error:
        # The probe of a private run knows what the model said, and not which argument to blame.
        cause = error.__cause__ if isinstance(error, UnsupportedModelError) else error
        if cause is None or isinstance(cause, SteppeError):
            raise
        said = str(cause).rstrip(".")
        rule = f"the model fails on these records: {type(cause).__name__}: {said}"
        raise validation.fail(name, value, rule, remedy) from error
