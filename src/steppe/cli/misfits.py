"""What a user's model raises, as a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from steppe import _validate
from steppe.errors import SteppeError

# What torch raises when shapes or types do not fit. Anything else is a bug with a traceback.
_MISFITS = (RuntimeError, TypeError, ValueError, IndexError)
FIT = "make it take the shape of one record of the data, with a batch in front"


def model_name(tables: Mapping[str, Any]) -> str | None:
    """What a configuration calls its model."""
    table = tables.get("model", {})
    return table.get("factory", table.get("name"))


@contextmanager
def misfits(name: str, value: Any, remedy: str) -> Iterator[None]:
    """Inside the block a model runs on records that it may not fit.

    Args:
        name: the argument to blame.
        value: its value.
        remedy: what to do.
    """
    try:
        yield
    except SteppeError:
        raise
    except _MISFITS as error:
        said = str(error).rstrip(".")
        rule = f"the model fails on these records: {type(error).__name__}: {said}"
        raise _validate.fail(name, value, rule, remedy) from error
