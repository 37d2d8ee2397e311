"""Code that can do without the values of a batch is asked to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def value_free() -> Iterator[None]:
    """A block in which `torch.compiler.is_compiling()` says yes.

    Libraries look at values to save work, such as a mask that leaves nothing out, and do not where
    a compiler asks, since there are no values then. The way that they take then treats every record
    alike, and is the one that can be proven.

    Examples:
        >>> with value_free():
        ...     torch.compiler.is_compiling()
        True
        >>> torch.compiler.is_compiling()
        False
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
