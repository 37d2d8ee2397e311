"""Place 5, correlated noise: a banded Toeplitz C.

Choquette-Choo et al., (Amplified) Banded Matrix Factorization: A unified approach to private
training, 2023; McKenna, Scaling up the Banded Matrix Factorization Mechanism, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steppe.accounting import Participation
from steppe.noise.correlated import Correlated
from steppe.noise.factor import ToeplitzFactor, inverse_series, root_series
from steppe.noise.streams import RingStream, Stream
from steppe.noise.workload import Vector
from steppe.utils.validation import positive_integer


@dataclass(frozen=True)
class BandedToeplitz(Correlated):
    """Noise whose C has the same few diagonals in every column, optimised for the run.

    A step's noise takes back what the last `bands` − 1 steps left. With `CyclicPoisson` of at least
    as many groups as bands, sampling amplifies privacy.

    Args:
        bands: diagonals of C, the main one included; a run keeps `bands` − 1 vectors.
        momentum: as for `Correlated`.

    Guarantees:
        As for `Correlated`.

    Examples:
        >>> noise, once = BandedToeplitz(16), Participation()
        >>> round(noise.factor(512, once).rmse(noise.workload_of(512), once), 2)
        4.75
    """

    bands: int

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "use 1 for independent noise, and about the root of the number of steps"
        bands = positive_integer("BandedToeplitz.bands", self.bands, remedy)
        object.__setattr__(self, "bands", bands)

    def reach(self, steps: int) -> int:
        """The bands, or all steps if there are fewer."""
        return min(self.bands, steps)

    def make(self, steps: int, participation: Participation) -> ToeplitzFactor:
        """The best column; the search begins with that of `SqrtToeplitz`."""
        from steppe.noise import optimise

        bands, workload = self.reach(steps), self.workload_of(steps)
        start = root_series(workload)[:bands]
        column = np.zeros(steps)
        column[:bands] = optimise.banded(start, workload, participation)
        return ToeplitzFactor(column, inverse_series(column), _stream, bands - 1)


def _stream(factor: ToeplitzFactor) -> Stream:
    """x = (z − Σ cⱼ x₋ⱼ) / c₀."""
    weights: Vector = np.concatenate(([1.0], -factor.column[1 : factor.memory + 1]))
    weights /= factor.column[0]
    return RingStream(factor.memory, lambda step: weights[: step + 1], of_output=True)
