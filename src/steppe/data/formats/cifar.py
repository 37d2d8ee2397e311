"""The binary versions of CIFAR-10 and CIFAR-100."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive

_PIXELS = 3 * 32 * 32


def read_cifar(content: bytes, labels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (records, 32, 32, 3) and labels.

    Args:
        content: records of `labels` label bytes and then 3072 pixels, one colour after the other.
        labels: 1 for CIFAR-10; 2 for CIFAR-100, whose coarse label comes before the fine one that
            is returned.

    Examples:
        >>> x, y = read_cifar(bytes([7]) + bytes(1024) + bytes([9]) * 2048, labels=1)
        >>> x.shape, x[0, 0, 0].tolist(), y.tolist()
        ((1, 32, 32, 3), [0, 9, 9], [7])
    """
    width = labels + _PIXELS
    if not content or len(content) % width:
        raise BrokenArchive(f"{len(content)} bytes are no records of {width}")
    table = np.frombuffer(content, np.uint8).reshape(-1, width)
    pictures = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pictures), table[:, labels - 1].copy()
