"""Place 2: the gradient at perturbed weights, found by a query of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import MovableWeights, StatelessPointRun, climb_radius

_REMEDY = "a common range is 0.005 to 0.1; use Here() for plain DP-SGD"


@dataclass(frozen=True)
class SAM:
    """Sharpness-aware minimisation: climb along the private gradient, then query again there.

    Both queries are about the same batch and both are noised. Foret et al., Sharpness-Aware
    Minimization for Efficiently Improving Generalization, 2021; with noise, Park et al.,
    Differentially Private Sharpness-Aware Training, 2023.

    Args:
        radius: ρ, the l2 length of the climb over all weights together.

    Guarantees:
        Two queries of one batch per step (`queries` = 2). Two Gaussian answers at σ about one
        Poisson batch are one answer at σ/√2, and the plan accounts them as such. The weights are
        back where they were, to the last bit, before the optimizer moves them.

    Examples:
        >>> SAM(0.05).queries
        2
    """

    radius: float

    def __post_init__(self) -> None:
        radius = climb_radius("SAM.radius", self.radius, _REMEDY)
        object.__setattr__(self, "radius", radius)

    @property
    def queries(self) -> int:
        """How many queries of the same batch one step makes."""
        return 2

    def begin(self, weights: MovableWeights) -> SAMRun:
        """Start a run. It has no state."""
        return SAMRun(weights, self.radius)


class SAMRun(StatelessPointRun):
    """Climbs along the first answer of every step."""

    def __init__(self, weights: MovableWeights, radius: float) -> None:
        self._weights, self._radius = weights, radius

    def offset(self, answers: Sequence[Tensor]) -> Tensor | None:
        """None for the first query, then ρ along its answer."""
        return self._weights.scaled(answers[0], self._radius) if answers else None

    def gradient(self, answers: Sequence[Tensor]) -> Tensor:
        """The answer at the perturbed weights."""
        return answers[1]
