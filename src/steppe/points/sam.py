"""Place 2: the gradient at the worst weights nearby, asked for with a query of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import Ask, MovableWeights, Walk, climb_radius

_REMEDY = "a common range is 0.005 to 0.1; use Here() for no climb"


@dataclass(frozen=True)
class SAM:
    """Sharpness-aware minimisation: climb along the private gradient, then ask again there.

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
        """How often one step asks the same batch."""
        return 2

    def begin(self, weights: MovableWeights) -> Walk:
        """The walk of one run: it remembers nothing from step to step."""

        def walk(ask: Ask) -> Tensor:
            climb = weights.scaled(ask(), self.radius)
            with weights.moved(climb):
                return ask()

        return walk
