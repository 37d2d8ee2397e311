"""Place 5, correlated noise: the square root of the workload.

Fichtenberger et al., Constant Matters: Fine-grained Error Bound on Differentially Private Continual
Observation, 2023; Henzinger and Upadhyay, Improved Differentially Private Continual Observation
Using Group Algebra, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from steppe.accounting import Participation
from steppe.noise.correlated import Correlated
from steppe.noise.factor import ToeplitzFactor, inverse_series, root_series
from steppe.noise.streams import RingStream, Stream


@dataclass(frozen=True)
class SqrtToeplitz(Correlated):
    """Noise whose C is the square root of the workload, in closed form.

    Close to optimal for records that take part once. A run keeps one vector for each step, so it is
    for small models and for comparison; `BLT` comes as close in the memory of a few vectors.

    Args:
        momentum: as for `Correlated`.

    Guarantees:
        As for `Correlated`.

    Examples:
        >>> noise, once = SqrtToeplitz(), Participation()
        >>> round(noise.factor(512, once).rmse(noise.workload_of(512), once), 3)
        2.889
    """

    def make(self, steps: int, participation: Participation) -> ToeplitzFactor:
        """c with c·c = the workload's series."""
        del participation
        column = root_series(self.workload_of(steps))
        return ToeplitzFactor(column, inverse_series(column), _stream, steps - 1)


def _stream(factor: ToeplitzFactor) -> Stream:
    """x = Σ mⱼ z₋ⱼ."""
    inverse = factor.inverse
    return RingStream(factor.memory, lambda step: inverse[: step + 1], of_output=False)
