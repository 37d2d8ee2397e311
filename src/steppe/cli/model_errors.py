"""Errors of a user's model, as messages about an argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steppe.errors import SteppeError, UnsupportedModelError
from steppe.utils import validation

# torch raises these if shapes or types do not fit. Anything else is a bug with a traceback.
_RAISED = (RuntimeError, TypeError, ValueError, IndexError)


@contextmanager
def errors_of_model(name: str, value: Any, remedy: str) -> Iterator[None]:
    """A block in which a model runs on records that it may not accept.

    Args:
        name: the argument that the error names.
        value: its value.
        remedy: what to do.
    """
    try:
        yield
    except (SteppeError, *_RAISED) as error:
        # Errors of the probe contain the model's error, but do not name an argument.
        cause = error.__cause__ if isinstance(error, UnsupportedModelError) else error
        if cause is None or isinstance(cause, SteppeError):
            raise
        said = str(cause).rstrip(".")
        rule = f"the model fails on these records: {type(cause).__name__}: {said}"
        raise validation.fail(name, value, rule, remedy) from error
