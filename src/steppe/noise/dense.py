"""Place 5, correlated noise: the best lower-triangular C for a workload.

Denisov et al., Improved Differential Privacy for SGD via Optimal Private Linear Operators on
Adaptive Streams, 2022; Choquette-Choo et al., Multi-Epoch Matrix Factorization Mechanisms for
Private Machine Learning, 2023.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from steppe.accounting import Participation
from steppe.noise.correlated import Correlated
from steppe.noise.factor import Factor
from steppe.noise.stored import stored
from steppe.noise.streams import RingStream
from steppe.noise.workload import Matrix, Vector, check_workload, toeplitz
from steppe.utils.validation import fail

# A search over fewer steps takes less than a second and is not stored.
_STORED_FROM = 256
_MOST_STEPS = 8192


@dataclass(frozen=True)
class Dense(Correlated):
    """Noise with the least mean squared error on a workload.

    The measure of what the others give away. Finding it takes seconds at 500 steps and minutes at
    2000, once: the matrix is stored in the user's cache directory. A run keeps one vector for each
    step, so it is for small models.

    Args:
        momentum: as for `Correlated`.
        workload: a lower-triangular matrix with one row for each step, instead of the iterates of
            SGD: row t has the weights of the gradients in output t. None for SGD.

    Guarantees:
        As for `Correlated`. The matrices are computed in float64; their sensitivity is computed
        from the matrix that is used, also if that comes from the store.

    Examples:
        >>> noise, once = Dense(), Participation()
        >>> round(noise.factor(64, once).rmse(noise.workload_of(64), once), 3)
        2.1
    """

    workload: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workload is not None:
            if self.momentum:
                rule = "cannot be given together with a workload, which may have any momentum"
                raise fail("Dense.momentum", self.momentum, rule, "put it into the workload")
            matrix = check_workload("Dense.workload", self.workload)
            object.__setattr__(self, "workload", tuple(map(tuple, matrix.tolist())))

    def workload_of(self, steps: int) -> Vector | Matrix:
        """The given workload, or the iterates of SGD."""
        if self.workload is None:
            return super().workload_of(steps)
        return np.array(self.workload)

    def check_steps(self, steps: int) -> None:
        """Refuse other steps than those of the workload, and more than a matrix can have."""
        if self.workload is not None and len(self.workload) != steps:
            rule = f"must have {steps} rows, one for each step of the run"
            raise fail("Dense.workload", f"{len(self.workload)} rows", rule)
        if steps > _MOST_STEPS:
            rule = f"must be at most {_MOST_STEPS}, because the matrix has that many rows"
            raise fail("steps", steps, rule, "use BLT(), which is nearly as good")

    def make(self, steps: int, participation: Participation) -> DenseFactor:
        """The optimum, computed or from the store."""
        from steppe.noise.dense_optimum import optimum

        self.check_steps(steps)
        workload = self.workload_of(steps)
        matrix = workload if workload.ndim == 2 else toeplitz(workload)

        def find() -> Matrix:
            return optimum(matrix, participation)

        if steps < _STORED_FROM:
            return DenseFactor(find())
        key = hashlib.sha256(f"dense 1, {participation}".encode() + matrix.tobytes()).hexdigest()
        lower = stored(key, (steps, steps), find, _is_triangular)
        return DenseFactor(lower)


def _is_triangular(matrix: Matrix) -> bool:
    return not np.triu(matrix, 1).any() and bool((np.diag(matrix) > 0).all())


class DenseFactor(Factor):
    """A lower-triangular C and its inverse.

    Args:
        encoder: C.
        decoder: C⁻¹, computed if it is not known.
    """

    def __init__(self, encoder: Matrix, decoder: Matrix | None = None) -> None:
        self._encoder = encoder
        self._decoder = _inverse(encoder) if decoder is None else decoder
        self.steps = len(encoder)
        self.memory = self.steps - 1

    def encoder(self) -> Matrix:
        """C."""
        return self._encoder

    def decoder(self) -> Matrix:
        """M."""
        return self._decoder

    def growth(self, participation: Participation) -> Vector:
        """See `Factor.growth`; the whole sensitivity at once for turns at least b apart."""
        whole, turns = self.squared_sensitivity(participation), participation.within(self.steps)
        if turns.times > 1 and not turns.exact:
            return np.full(self.steps, whole)
        found = np.zeros(self.steps)
        for first in range(self.steps):
            columns = self._encoder[:, first :: turns.separation][:, : turns.times]
            products = np.cumsum(columns[:, :, None] * columns[:, None, :], 0)
            np.maximum(found, np.abs(products).sum((1, 2)), out=found)
        return np.append(np.minimum(np.maximum.accumulate(found), whole)[:-1], whole)

    def first(self, steps: int) -> DenseFactor:
        """The upper left corners, which are inverse to each other too."""
        return DenseFactor(self._encoder[:steps, :steps], self._decoder[:steps, :steps])

    def stream(self) -> RingStream:
        """x = Σ M[t, j] zⱼ, newest first."""
        decoder = self._decoder
        return RingStream(self.memory, lambda step: decoder[step, step::-1], of_output=False)


def _inverse(lower: Matrix) -> Matrix:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(lower, np.eye(len(lower)), lower=True))
