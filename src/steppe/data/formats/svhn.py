"""The cropped digits of SVHN: MATLAB files of version 5."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive


def read_svhn(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (records, 32, 32, 3) and labels; the file's label 10 is the digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        # Only plain numeric arrays are asked for; the reader builds no other objects for them.
        found = loadmat(io.BytesIO(content), variable_names=["X", "y"])
        x, y = found["X"], found["y"]
    except (KeyError, ValueError, TypeError, OSError, NotImplementedError, MatReadError) as reason:
        raise BrokenArchive(f"not a MATLAB 5 file with X and y: {reason}") from None
    labels = y.ravel()
    if x.dtype != np.uint8 or x.shape != (32, 32, 3, len(labels)):
        raise BrokenArchive(f"pictures of type {x.dtype} in the shape {x.shape}")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), (labels % 10).astype(np.uint8)
