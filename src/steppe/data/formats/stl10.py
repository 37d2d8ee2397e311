"""The binary files of STL-10."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive

_PIXELS = 3 * 96 * 96


def read_stl10(pictures: bytes, labels: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (records, 96, 96, 3) and labels, which the file counts from 1.

    In the file one colour follows the other, and each is written column by column.
    """
    if not labels or len(pictures) != len(labels) * _PIXELS:
        raise BrokenArchive(f"{len(pictures)} bytes of pictures for {len(labels)} labels")
    x = np.frombuffer(pictures, np.uint8).reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)
    y = np.frombuffer(labels, np.uint8)
    if y.min() < 1:
        raise BrokenArchive("a label 0 where labels count from 1")
    return np.ascontiguousarray(x), y - 1
