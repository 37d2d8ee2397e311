"""Place 2: the gradient at weights perturbed along the last private gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import MovableWeights, climb_radius

_REMEDY = "a common range is 0.005 to 0.1; use Here() for plain DP-SGD"


@dataclass(frozen=True)
class SAT:
    """Sharpness-aware training: climb along the previous step's private gradient.

    That gradient is public already, so the climb costs no query and no second pass. It is the
    noised mean gradient itself, before momentum and learning rate. The first step does not climb.
    Park et al., Differentially Private Sharpness-Aware Training, 2023.

    Args:
        radius: ρ, the l2 length of the climb over all weights together.

    Guarantees:
        One query of the batch per step (`queries` = 1); the account is that of DP-SGD. One climb
        per step, however many parts the batch comes in, and the weights are back where they were,
        to the last bit, before the optimizer moves them.

    Examples:
        >>> SAT(0.03).queries
        1
    """

    radius: float

    def __post_init__(self) -> None:
        radius = climb_radius("SAT.radius", self.radius, _REMEDY)
        object.__setattr__(self, "radius", radius)

    @property
    def queries(self) -> int:
        """How many queries of the same batch one step makes."""
        return 1

    def begin(self, weights: MovableWeights) -> SATRun:
        """Start a run; it remembers where to climb next."""
        return SATRun(weights, self.radius)


class SATRun:
    """Climbs along the last step's gradient."""

    def __init__(self, weights: MovableWeights, radius: float) -> None:
        self._weights, self._radius = weights, radius
        self._climb: Tensor | None = None

    def offset(self, answers: Sequence[Tensor]) -> Tensor | None:
        """ρ along the last step's gradient; None in the first step."""
        return self._climb

    def gradient(self, answers: Sequence[Tensor]) -> Tensor:
        """The one answer. The next step climbs along it."""
        # A copy, because optimizer and user may change `.grad`.
        self._climb = self._weights.scaled(answers[0], self._radius)
        return answers[0]

    def state(self) -> dict[str, Tensor]:
        """The next climb."""
        return {} if self._climb is None else {"climb": self._climb.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a climb."""
        self._climb = state["climb"].clone() if "climb" in state else None
