"""Place 2: the gradient a little way back along the path that the weights have come."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import Ask, MovableWeights, Walk, climb_radius

_REMEDY = "a common range is 0.05 to 0.5; use Here() for no climb"


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
        """How often one step asks the same batch."""
        return 1

    def begin(self, weights: MovableWeights) -> Walk:
        """The walk of one run: it remembers the weights of the step before."""
        return _Return(weights, self.radius)


class _Return:
    def __init__(self, weights: MovableWeights, radius: float) -> None:
        self._weights, self._radius = weights, radius
        self._previous: Tensor | None = None

    def __call__(self, ask: Ask) -> Tensor:
        here = self._weights.flat()
        climb = None
        if self._previous is not None:
            climb = self._weights.scaled(self._previous - here, self._radius)
        with self._weights.moved(climb):
            gradient = ask()
        self._previous = here  # only now: a step that failed has moved nothing
        return gradient

    def state(self) -> dict[str, Tensor]:
        return {} if self._previous is None else {"previous": self._previous.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        self._previous = state["previous"].clone() if "previous" in state else None
