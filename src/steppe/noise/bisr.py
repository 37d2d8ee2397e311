"""Place 5, correlated noise: the inverse of C is banded, and the square root's own (BISR).

Kalinin et al., Back to Square Roots: An Optimal Bound on the Matrix Factorization Error for
Multi-Epoch Differentially Private SGD, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steppe.accounting import Participation
from steppe.noise.correlated import Correlated
from steppe.noise.factor import ToeplitzFactor, inverse_series, root_series
from steppe.noise.streams import RingStream, Stream
from steppe.utils.validation import positive_integer


@dataclass(frozen=True)
class BISR(Correlated):
    """Noise that weights the fresh noise of the last steps by the inverse square root's numbers.

    Args:
        bands: diagonals of C⁻¹, the main one included; a run keeps `bands` − 1 vectors.
        momentum: as for `Correlated`.

    Guarantees:
        As for `Correlated`.

    Examples:
        >>> noise, once = BISR(16), Participation()
        >>> round(noise.factor(512, once).rmse(noise.workload_of(512), once), 2)
        3.83
    """

    bands: int

    def __post_init__(self) -> None:
        super().__post_init__()
        bands = positive_integer(f"{type(self).__name__}.bands", self.bands, "4 to 16 is common")
        object.__setattr__(self, "bands", bands)

    def inverse(self, steps: int, participation: Participation) -> np.ndarray:
        """The first numbers of the inverse of C."""
        del participation
        return inverse_series(root_series(self.workload_of(steps)))[: self.bands]

    def make(self, steps: int, participation: Participation) -> ToeplitzFactor:
        """C is the inverse of the banded matrix."""
        column, known = np.zeros(steps), self.inverse(steps, participation)
        column[: len(known)] = known
        return ToeplitzFactor(inverse_series(column), column, _stream, len(known) - 1)


def _stream(factor: ToeplitzFactor) -> Stream:
    """x = Σ mⱼ z₋ⱼ."""
    inverse = factor.inverse[: factor.memory + 1]
    return RingStream(factor.memory, lambda step: inverse[: step + 1], of_output=False)
