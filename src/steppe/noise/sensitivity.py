"""How far one record can move what a correlated noise hides: the sensitivity of a matrix C.

A record that takes part in the steps π moves C·(clipped sums) by Σ C[:, i] gᵢ over i in π, with
‖gᵢ‖ ≤ 1. Its squared norm is at most the sum of |X[i, j]| over i, j in π, where X = CᵀC, and
exactly that where X has no negative entry. The sensitivity is the largest root over all π.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steppe.accounting import Participation

Matrix = NDArray[np.float64]


def squared_sensitivity(gram: Matrix, participation: Participation) -> float:
    """The squared sensitivity of C for unit clips.

    Args:
        gram: X = CᵀC.
        participation: in which steps a record can take part.

    Returns:
        The exact value for one turn, and for turns at an exact distance if X has no negative
        entry; also for turns at least b apart if X is zero from the b-th diagonal on. Otherwise an
        upper bound.

    Examples:
        >>> squared_sensitivity(np.eye(6), Participation(times=3, separation=2))
        3.0
    """
    steps = len(gram)
    turns = participation.within(steps)
    if turns.times == 1:
        return float(np.diag(gram).max())
    if turns.exact:
        return _exact_distance(np.abs(gram), turns)
    return _smallest_distance(np.abs(gram), turns)


def _exact_distance(gram: Matrix, turns: Participation) -> float:
    found = 0.0
    for first in range(len(gram)):
        taken = np.arange(first, len(gram), turns.separation)[: turns.times]
        found = max(found, float(gram[np.ix_(taken, taken)].sum()))
    return found


def _smallest_distance(gram: Matrix, turns: Participation) -> float:
    """Σ over rows of what the best partners of each row add, then the best rows."""
    near = np.triu(gram, turns.separation)
    if not near.any():
        return float(best_turns(np.diag(gram)[None], turns)[0])
    return float(best_turns(best_turns(gram, turns)[None], turns)[0])


def best_turns(values: Matrix, turns: Participation) -> NDArray[np.float64]:
    """The largest sum of at most k entries of each row that are at least b apart.

    Args:
        values: non-negative, one row for each problem.
        turns: k and b.

    Examples:
        >>> best_turns(np.array([[3.0, 4.0, 3.0]]), Participation(2, 2, exact=False))
        array([6.])
    """
    rows, steps = values.shape
    before = np.zeros((rows, steps + turns.separation))
    for _ in range(turns.times):
        now = np.zeros_like(before)
        for step in range(steps - 1, -1, -1):
            with_it = values[:, step] + before[:, step + turns.separation]
            now[:, step] = np.maximum(now[:, step + 1], with_it)
        before = now
    return before[:, 0]
