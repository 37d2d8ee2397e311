"""Place 2: the gradient at weights perturbed back along the last update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import MovableWeights, climb_radius

_REMEDY = "a common range is 0.05 to 0.5; use Here() for plain DP-SGD"


@dataclass(frozen=True)
class SATMomentum:
    """Sharpness-aware training with momentum: climb back along the optimizer's last move.

    The climb goes from the current weights towards the previous ones. With SGD that is the
    direction of the momentum buffer, which averages the noise of many steps; with any optimizer it
    is what the last step undid. The first step does not climb. Park et al., Differentially Private
    Sharpness-Aware Training, 2023.

    Args:
        radius: ρ, the l2 length of the climb over all weights together; about ten times that of
            `SAT`.

    Guarantees:
        One query of the batch per step (`queries` = 1); the account is that of DP-SGD. One climb
        per step, however many parts the batch comes in, and the weights are back where they were,
        to the last bit, before the optimizer moves them.

    Examples:
        >>> SATMomentum(0.1).queries
        1
    """

    radius: float

    def __post_init__(self) -> None:
        radius = climb_radius("SATMomentum.radius", self.radius, _REMEDY)
        object.__setattr__(self, "radius", radius)

    @property
    def queries(self) -> int:
        """How many queries of the same batch one step makes."""
        return 1

    def begin(self, weights: MovableWeights) -> SATMomentumRun:
        """Start a run; it remembers the weights of the step before."""
        return SATMomentumRun(weights, self.radius)


class SATMomentumRun:
    """Climbs back towards the weights of the step before."""

    def __init__(self, weights: MovableWeights, radius: float) -> None:
        self._weights, self._radius = weights, radius
        self._previous: Tensor | None = None

    def offset(self, answers: Sequence[Tensor]) -> Tensor | None:
        """ρ towards the weights of the step before; None in the first step."""
        if self._previous is None:
            return None
        return self._weights.scaled(self._previous - self._weights.flat(), self._radius)

    def gradient(self, answers: Sequence[Tensor]) -> Tensor:
        """The one answer; the weights, back in their place by now, are remembered."""
        self._previous = self._weights.flat()
        return answers[0]

    def state(self) -> dict[str, Tensor]:
        """The weights of the step before."""
        return {} if self._previous is None else {"previous": self._previous.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from the weights of a step before."""
        self._previous = state["previous"].clone() if "previous" in state else None
