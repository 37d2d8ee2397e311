"""Many small pictures in one PNG: each row of the PNG is one picture, its rows laid end to end."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive


def read_picture_rows(content: bytes, side: int) -> NDArray[np.uint8]:
    """Colour pictures (records, side, side, 3).

    Args:
        content: a PNG of `side`² RGB pixels a row.
        side: height and width of one picture.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            mode, rows = png.mode, np.array(png)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as reason:
        raise BrokenArchive(f"not a whole PNG: {reason}") from None
    if mode != "RGB" or rows.shape[1] != side * side:
        raise BrokenArchive(f"a PNG of {mode} pixels in the shape {rows.shape[:2]}")
    return rows.reshape(-1, side, side, 3)
