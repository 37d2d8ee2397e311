"""Place 5, correlated noise: a buffered linear Toeplitz C (BLT).

McMahan, Xu and Zhang, A Hassle-free Algorithm for Private Learning in Practice: Don't Use Tree
Aggregation, Use BLTs, 2024; Dvijotham et al., Efficient and Near-Optimal Noise Generation for
Streaming Differential Privacy, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steppe.accounting import Participation
from steppe.noise.correlated import Correlated
from steppe.noise.factor import ToeplitzFactor
from steppe.noise.streams import BufferStream
from steppe.noise.workload import Vector
from steppe.utils.validation import fail, positive_integer

_MOST = 10


@dataclass(frozen=True)
class BLT(Correlated):
    """Noise whose C is a sum of a few decaying exponentials, optimised for the run.

    With three buffers it is within 4 % of the best noise there is, in the memory of three vectors.

    Args:
        buffers: how many exponentials, which is how many vectors a run keeps; 2 to 5 is common.
        momentum: as for `Correlated`.

    Guarantees:
        As for `Correlated`.

    Examples:
        >>> noise, once = BLT(3), Participation()
        >>> found = noise.factor(512, once)
        >>> round(found.rmse(noise.workload_of(512), once), 1), found.memory
        (2.8, 3)
    """

    buffers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        buffers = positive_integer("BLT.buffers", self.buffers, "2 to 5 is common")
        if buffers > _MOST:
            rule = f"must be at most {_MOST}, more do not lower the error"
            raise fail("BLT.buffers", buffers, rule, "2 to 5 is common")
        object.__setattr__(self, "buffers", buffers)

    def make(self, steps: int, participation: Participation) -> ToeplitzFactor:
        """The best decays and weights."""
        from scipy.signal import lfilter

        from steppe.noise import optimise

        poles, zeros = optimise.buffers(self.buffers, self.workload_of(steps), participation)
        column = inverse = np.concatenate(([1.0], np.zeros(steps - 1)))
        for pole, zero in zip(poles, zeros, strict=True):
            column = lfilter([1.0, -zero], [1.0, -pole], column)
            inverse = lfilter([1.0, -pole], [1.0, -zero], inverse)
        weights = exponential_weights(poles, zeros)
        return ToeplitzFactor(column, inverse, lambda _: BufferStream(poles, weights), self.buffers)


def exponential_weights(poles: Vector, zeros: Vector) -> Vector:
    """ω in c(x) = 1 + Σ ωᵢ x / (1 − θᵢ x), by partial fractions.

    Examples:
        >>> exponential_weights(np.array([0.9]), np.array([0.4]))
        array([0.5])
    """
    found = np.empty_like(poles)
    for i, pole in enumerate(poles):
        others = np.delete(poles, i)
        # In pairs of about the same size, so that no product leaves the range of floats.
        factors = (pole - np.delete(zeros, i)) / (pole - others)
        found[i] = (pole - zeros[i]) * np.prod(factors)
    return found
