"""The IDX files of MNIST and its relatives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive

_UNSIGNED_BYTE = 8


def read_idx(content: bytes) -> NDArray[np.uint8]:
    """An array of unsigned bytes.

    The file starts with two zero bytes, the element type, the number of axes, and each axis's
    length as four bytes, highest first; the elements follow, last axis fastest.

    Examples:
        >>> read_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
        array([[7, 8, 9]], dtype=uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise BrokenArchive("not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise BrokenArchive("an IDX file cut inside its header")
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise BrokenArchive(f"an IDX file of {len(content)} bytes for the shape {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
