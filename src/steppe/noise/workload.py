"""What noise is measured by: the linear map from the gradients of a run to its iterates.

Plain SGD publishes prefix sums of its gradients; with momentum β the step t weights gradient i by
1 + β + … + β^(t−i). Both are Toeplitz matrices, given here by their first column. Any other
lower-triangular matrix can be a workload of `Dense`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.utils.validation import fail, non_negative

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def prefix_sum(steps: int, momentum: float = 0.0) -> Vector:
    """The first column of the workload of SGD.

    Examples:
        >>> prefix_sum(3), prefix_sum(3, momentum=0.5)
        (array([1., 1., 1.]), array([1.  , 1.5 , 1.75]))
    """
    return np.cumsum(momentum ** np.arange(steps, dtype=np.float64))


def toeplitz(column: Vector) -> Matrix:
    """The lower-triangular Toeplitz matrix with this first column.

    Examples:
        >>> toeplitz(np.array([1.0, 2.0]))
        array([[1., 0.],
               [2., 1.]])
    """
    lag = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)


def check_momentum(name: str, value: Any) -> float:
    """β of the workload, from 0 to below 1."""
    number = non_negative(name, value, "use the momentum of the optimizer, or 0")
    if number >= 1:
        raise fail(name, value, "must be below 1", "use the momentum of the optimizer, or 0")
    return number


def check_workload(name: str, value: Any) -> Matrix:
    """A lower-triangular workload, refused if it is not square, finite, triangular, invertible."""
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(name, type(value).__name__, "must be a matrix of numbers") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise fail(name, matrix.shape, "must be a square matrix", "give one row for each step")
    if not np.isfinite(matrix).all():
        raise fail(name, "with inf or NaN", "must be finite", "give finite numbers")
    if np.triu(matrix, 1).any():
        rule = "must be lower-triangular, because a step cannot use later gradients"
        raise fail(name, f"entry {tuple(np.argwhere(np.triu(matrix, 1))[0].tolist())}", rule)
    if not np.diag(matrix).all():
        rule = "must have no zero on its diagonal, because the gradient of that step is not used"
        raise fail(name, f"row {int(np.argmin(np.abs(np.diag(matrix))))}", rule)
    return matrix
