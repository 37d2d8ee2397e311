"""Pictures as lines of text: a label and then the pixels, all separated by commas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive


def read_pixel_csv(content: bytes, side: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (records, side, side) and labels from a file with one header line.

    Examples:
        >>> x, y = read_pixel_csv(b"label,a,b,c,d\\n5,1,2,3,255\\n", side=2)
        >>> x.tolist(), y.tolist()
        ([[[1, 2], [3, 255]]], [5])
    """
    _, _, body = content.partition(b"\n")
    lines = body.replace(b"\r", b"").strip(b"\n").replace(b"\n", b",")
    values = np.fromstring(lines.decode("ascii"), dtype=np.uint8, sep=",")
    width = 1 + side * side
    if len(values) == 0 or len(values) % width:
        raise BrokenArchive(f"{len(values)} numbers are no lines of a label and {width - 1} pixels")
    table = values.reshape(-1, width)
    return table[:, 1:].reshape(-1, side, side).copy(), table[:, 0].copy()
