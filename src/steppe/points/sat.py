"""Place 2: the gradient at the worst weights nearby, as far as the last step can tell."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steppe.points.point import Ask, MovableWeights, Walk, climb_radius

_REMEDY = "a common range is 0.005 to 0.1; use Here() for no climb"


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

    def begin(self, weights: MovableWeights) -> Walk:
        """The walk of one run: it remembers where to climb next."""
        return _Climb(weights, self.radius)


class _Climb:
    def __init__(self, weights: MovableWeights, radius: float) -> None:
        self._weights, self._radius = weights, radius
        self._next: Tensor | None = None

    def __call__(self, ask: Ask) -> Tensor:
        with self._weights.moved(self._next):
            gradient = ask()
        # A copy of its own: the optimizer and the user may do to `.grad` what they like.
        self._next = self._weights.scaled(gradient, self._radius)
        return gradient

    def state(self) -> dict[str, Tensor]:
        return {} if self._next is None else {"climb": self._next.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        self._next = state["climb"].clone() if "climb" in state else None
