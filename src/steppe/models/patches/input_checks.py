"""Checks of the pictures for a patch front-end, and of the memory, before any computation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steppe.models.patches.sizes import Sizes
from steppe.utils import validation
from steppe.utils.memory import free_memory

_WORKSPACE = 2**29  # bytes; for blocks, constants and copies
_CHUNK = 4096  # pictures at a time


def require_shape(pictures: Tensor, sizes: Sizes) -> None:
    """Require the shape of pictures that the front-end was made for."""
    wanted = (sizes.colours, sizes.side, sizes.side)
    if tuple(pictures.shape[1:]) != wanted:
        raise validation.fail(
            "pictures",
            tuple(pictures.shape),
            f"must have the shape (records, {', '.join(map(str, wanted))})",
            "set side and colours to those of the pictures",
        )


def require_pictures(pictures: Tensor, sizes: Sizes) -> None:
    """Require pictures as floats from 0 to 1, at least one of which is not constant."""
    require_shape(pictures, sizes)
    if not pictures.is_floating_point():
        raise validation.fail(
            "pictures",
            str(pictures.dtype),
            "must be floats from 0 to 1",
            "convert them, for 8 bits: pictures.float() / 255",
        )
    if not len(pictures):
        raise validation.fail("pictures", tuple(pictures.shape), "has no records")
    low, high = (float(value) for value in pictures.aminmax())
    if not math.isfinite(low) or not math.isfinite(high):  # NaN anywhere is both bounds
        raise validation.fail(
            "pictures", "with NaN or infinity", "must be finite", "repair those records"
        )
    if low < 0 or high > 1:
        raise validation.fail(
            "pictures",
            "with values below 0" if low < 0 else "with values above 1",  # no value of a record
            "must lie between 0 and 1",
            "divide 8-bit values by 255; undo other scalings",
        )
    varies = any(bool((chunk != chunk[:, :, :1, :1]).any()) for chunk in pictures.split(_CHUNK))
    if not varies:
        raise validation.fail(
            "pictures", "constant", "every picture has a single colour", "check how they were read"
        )


def require_memory(records: int, features: int, dtype: torch.dtype, sizes: Sizes) -> None:
    """Require memory for all features; the error names a smaller front-end."""
    free = free_memory()
    # Half precision is what is computed; another type is a copy of it.
    size = 2 if dtype == torch.float16 else 2 + dtype.itemsize
    needed = records * features * size + _WORKSPACE
    if free is None or needed <= free:
        return
    smaller = max(1, sizes.dictionary // 4)
    raise validation.fail(
        "pictures",
        records,
        f"{features:,} features each need {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB "
        "are free",
        f"use dictionary={smaller} (in a file under [model]), which needs about a quarter of that "
        "and is less accurate, or free some memory",
    )
