"""Matrices that took long to find, in the user's cache directory."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from steppe.noise.workload import Matrix
from steppe.utils.cache_folder import cache_folder
from steppe.utils.files import write_atomically

Check: TypeAlias = Callable[[Matrix], bool]


def stored(key: str, shape: tuple[int, ...], make: Callable[[], Matrix], usable: Check) -> Matrix:
    """The matrix stored under a key, or a new one, which is then stored.

    Args:
        key: identifies everything that the matrix is made from.
        shape: it must have.
        make: computes it.
        usable: whether a matrix that was read can be what was stored.

    Returns:
        A matrix of finite float64 numbers. A file that is damaged is made anew; a folder that
        cannot be written to is passed over.
    """
    path = cache_folder() / "noise" / f"{key}.npy"
    with suppress(OSError, ValueError, EOFError):
        found = np.load(path, allow_pickle=False)
        sound = found.shape == shape and found.dtype == np.float64 and np.isfinite(found).all()
        if sound and usable(found):
            return np.asarray(found)
    made = make()
    content = io.BytesIO()
    np.save(content, made, allow_pickle=False)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    return made
