"""Place 5, correlated noise: the inverse of C is banded, and optimised for the run (BandInvMF).

Kalinin et al., Back to Square Roots: An Optimal Bound on the Matrix Factorization Error for
Multi-Epoch Differentially Private SGD, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steppe.accounting import Participation
from steppe.noise.bisr import BISR


@dataclass(frozen=True)
class BandInvMF(BISR):
    """Noise that weights the fresh noise of the last steps by the numbers best for the run.

    Args:
        bands: diagonals of C⁻¹, the main one included; a run keeps `bands` − 1 vectors.
        momentum: as for `Correlated`.

    Guarantees:
        As for `Correlated`.

    Examples:
        >>> noise, once = BandInvMF(4), Participation()
        >>> round(noise.factor(512, once).rmse(noise.workload_of(512), once), 2)
        3.43
    """

    def inverse(self, steps: int, participation: Participation) -> np.ndarray:
        """The best first numbers of the inverse; the search begins with those of `BISR`."""
        from steppe.noise import optimise

        start = super().inverse(steps, participation)
        return optimise.banded_inverse(start, self.workload_of(steps), participation)
