"""Makes libraries skip code that depends on the values of a batch, as for a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributions import Distribution


@contextmanager
def value_free() -> Iterator[None]:
    """A block in which `torch.compiler.is_compiling()` says yes.

    Libraries look at values to save work, such as a mask that leaves nothing out, and do not where
    a compiler asks, since there are no values then. The way that they take then treats every record
    alike, and is the one that can be proven. `torch.distributions` leave out their checks of values
    unless they are told `validate_args=True`.

    Examples:
        >>> with value_free():
        ...     torch.compiler.is_compiling()
        True
        >>> torch.compiler.is_compiling()
        False
    """
    before = torch.compiler._is_compiling_flag, Distribution._validate_args
    torch.compiler._is_compiling_flag = True
    Distribution._validate_args = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, Distribution._validate_args = before
