"""The best C of all: min tr(AᵀA X⁻¹) over X = CᵀC of sensitivity 1, which is convex.

Denisov et al., 2022, Theorem 3.2, for records that take part once; Choquette-Choo et al.,
Multi-Epoch Matrix Factorization Mechanisms for Private Machine Learning, 2023, for more turns.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh, solve, solve_triangular

from steppe.accounting import Participation
from steppe.noise.workload import Matrix, Vector

# The search ends where the error is above the least one by less than this share.
_GAP = 1e-6
_FIXED_POINT_STEPS, _DESCENT_STEPS = 100, 300
_SMALLEST_GAIN = 1e-8
_REMEMBERED = 10


def optimum(workload: Matrix, participation: Participation) -> Matrix:
    """The best lower-triangular C, up to a factor.

    Args:
        workload: A, lower-triangular.
        participation: turns of a record.

    Returns:
        C. For several turns X is zero between different turns of a record, so that what they say
        does not add up; that gives away little and makes the problem convex.
    """
    turns = participation.within(len(workload))
    gram = workload.T @ workload
    if turns.times == 1:
        return factor_of(_once(gram))
    return factor_of(_several(gram, turns))


def factor_of(squared: Matrix) -> Matrix:
    """The lower-triangular C with CᵀC = X. (CCᵀ = X is another matrix, of other sensitivity.)

    Examples:
        >>> C = factor_of(np.array([[2.0, 1.0], [1.0, 1.0]]))
        >>> (C.T @ C).round(12), bool(C[0, 1] == 0)
        (array([[2., 1.],
               [1., 1.]]), True)
    """
    return np.asarray(cholesky(squared[::-1, ::-1], lower=False)[::-1, ::-1])


def _once(gram: Matrix) -> Matrix:
    """The fixed point v = diag √(√D AᵀA √D), D = diag v, which the optimum satisfies.

    The iteration on log v has steps of twice the length, and Anderson's acceleration, which needs
    a fifth of the steps where the workload has momentum. The best X on the way is returned.
    """
    logs = np.log(np.diag(gram)) / 2
    best, least = np.eye(len(gram)), np.inf
    seen: deque[tuple[Vector, Vector]] = deque(maxlen=_REMEMBERED + 1)
    for _ in range(_FIXED_POINT_STEPS):
        values, root = np.exp(logs), np.exp(logs / 2)
        spectrum, vectors = eigh(gram * root * root[:, None], driver="evd", check_finite=False)
        roots = np.sqrt(np.maximum(spectrum, 0.0))
        middle = (vectors * roots) @ vectors.T
        bound = 2 * roots.sum() - values.sum()  # which no error is below
        squared = middle / root / root[:, None]
        scale = np.sqrt(np.diag(squared))
        squared /= scale * scale[:, None]
        error = float(np.trace(solve(squared, gram, assume_a="pos", check_finite=False)))
        if error < least:
            best, least = squared, error
        if error - bound < _GAP * bound:
            break
        seen.append((logs, 2 * np.log(np.diag(middle) / values)))
        logs = _accelerated(seen)
    return np.asarray(best)


def _accelerated(seen: deque[tuple[Vector, Vector]]) -> Vector:
    """Anderson's next point, from the points so far and their steps."""
    point, step = seen[-1]
    points, steps = (np.diff(np.array(column), axis=0).T for column in zip(*seen, strict=True))
    if not points.size:
        return point + step
    weights = np.linalg.lstsq(steps, step, rcond=1e-8)[0]
    return np.asarray(point + step - (points + steps) @ weights)


def _several(gram: Matrix, turns: Participation) -> Matrix:
    """Descent by L-BFGS in the linear space that the turns leave free."""
    steps = len(gram)
    free = _Free(steps, turns)
    squared = np.eye(steps) / turns.times
    value, gradient = _loss(gram, squared)
    gradient = free.project(gradient)
    if not gradient.any():  # turns that can be in all steps leave nothing free
        return squared
    memory: deque[tuple[Matrix, Matrix, float]] = deque(maxlen=_REMEMBERED)
    for _ in range(_DESCENT_STEPS):
        direction = _direction(gradient, memory)
        slope = float(np.vdot(gradient, direction))
        length = 1.0 if memory else 0.1 * np.linalg.norm(squared) / np.linalg.norm(gradient)
        for _ in range(40):
            moved = squared + length * direction
            found, steepest = _loss(gram, moved)
            if found <= value + 1e-4 * length * slope:
                break
            length /= 2
        else:
            break
        steepest = free.project(steepest)
        change, turn = moved - squared, steepest - gradient
        if (product := float(np.vdot(change, turn))) > 0:
            memory.append((change, turn, product))
        gain, squared, value, gradient = value - found, moved, found, steepest
        if gain < _SMALLEST_GAIN * value:
            break
    return squared


class _Free:
    """The changes of X that turns leave free: no overlap of turns, no change of sensitivity."""

    def __init__(self, steps: int, turns: Participation) -> None:
        lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
        b = turns.separation
        self._open = lag % b != 0 if turns.exact else (lag < b) & (lag > 0)
        self._group = np.arange(steps) % b if turns.exact else None

    def project(self, gradient: Matrix) -> Matrix:
        """The part of a gradient along these changes."""
        found = np.where(self._open, gradient, 0.0)
        if self._group is not None:
            diagonal = np.diag(gradient)
            sums = np.bincount(self._group, diagonal) / np.bincount(self._group)
            np.fill_diagonal(found, diagonal - sums[self._group])
        return found


def _loss(gram: Matrix, squared: Matrix) -> tuple[float, Matrix]:
    """tr(AᵀA X⁻¹) and its gradient −X⁻¹ AᵀA X⁻¹; infinite if X is not positive definite."""
    try:
        lower = cholesky(squared, lower=True, check_finite=False)
    except LinAlgError:
        return np.inf, squared
    inner = solve_triangular(lower, gram, lower=True, check_finite=False)
    inner = solve_triangular(lower, inner, lower=True, trans="T", check_finite=False)
    outer = solve_triangular(lower, inner.T, lower=True, check_finite=False)
    outer = solve_triangular(lower, outer, lower=True, trans="T", check_finite=False)
    return float(np.trace(inner)), -(outer + outer.T) / 2


def _direction(gradient: Matrix, memory: deque[tuple[Matrix, Matrix, float]]) -> Matrix:
    """The quasi-Newton direction, by two loops over the changes remembered."""
    found = -gradient
    weights: list[float] = []
    for change, turn, product in reversed(memory):
        weights.append(float(np.vdot(change, found)) / product)
        found = found - weights[-1] * turn
    if memory:
        change, turn, product = memory[-1]
        found *= product / float(np.vdot(turn, turn))
    for (change, turn, product), weight in zip(memory, reversed(weights), strict=True):
        found = found + (weight - float(np.vdot(turn, found)) / product) * change
    return found
