"""Place 2: the gradient at the worst weights nearby, as far as the last step can tell."""

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
        """How often one step asks the same batch."""
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
        """The one answer, which is also where the next step climbs."""
        # A copy of its own: the optimizer and the user may do to `.grad` what they like.
        self._climb = self._weights.scaled(answers[0], self._radius)
        return answers[0]

    def state(self) -> dict[str, Tensor]:
        """The next climb."""
        return {} if self._climb is None else {"climb": self._climb.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a climb."""
        self._climb = state["climb"].clone() if "climb" in state else None
