"""Place 2: the protocol of a point, and the weights it may move.

A step queries the same batch `queries` times, and the account is made from that number. Before each
query the point says how far the weights are moved for it, from the noised answers so far; after the
last one it makes the step's gradient from all answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from steppe.utils import validation

# The direction of shorter vectors is meaningless, and radius / length would overflow float32.
_SHORTEST = 1e-30


# A longer climb would overflow float32.
_LONGEST = 1e9


def climb_radius(name: str, value: Any, remedy: str) -> float:
    """Check ρ, the length of a climb: above 0, and small enough for float32."""
    radius = validation.positive(name, value, remedy)
    if radius > _LONGEST:
        raise validation.fail(name, value, f"must be at most {_LONGEST:g}", remedy)
    return radius


class MovableWeights:
    """The trained weights, which can be moved and restored.

    Weights that are frozen keep their place in flat vectors; they are never moved and do not count
    towards lengths.

    Args:
        parameters: the trained weights, in the order of the flat gradient.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)

    def flat(self) -> Tensor:
        """A copy of all weights as one vector, in float32 or float64."""
        double = any(parameter.dtype == torch.float64 for parameter in self._parameters)
        dtype = torch.float64 if double else torch.float32
        return torch.cat([p.detach().flatten().to(dtype) for p in self._parameters])

    def scaled(self, direction: Tensor, radius: float) -> Tensor | None:
        """The direction with length `radius`, measured over all weights that are not frozen.

        Args:
            direction: a flat vector as long as all weights together.
            radius: the length to give it.

        Returns:
            A new vector, or None if the direction has length zero.
        """
        pieces = [piece for weight, piece in self._pieces(direction) if weight.requires_grad]
        if not pieces:
            return None
        norms = [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in pieces]
        length = float(torch.linalg.vector_norm(torch.stack(norms)))
        if not _SHORTEST < length < math.inf:
            return None
        return direction * (radius / length)

    @contextmanager
    def moved(self, by: Tensor | None) -> Iterator[None]:
        """A block in which the weights are moved by `by`. It restores them exactly at its end.

        Args:
            by: a flat vector as long as all weights together; None does not move them.
        """
        pairs = [] if by is None else [pair for pair in self._pieces(by) if pair[0].requires_grad]
        if not pairs:
            yield
            return
        weights = [weight.detach() for weight, _ in pairs]
        kept = [weight.clone() for weight in weights]
        try:
            torch._foreach_add_(weights, [piece.to(weight.dtype) for weight, piece in pairs])
            yield
        finally:
            # One call, which Ctrl-C cannot interrupt.
            torch._foreach_copy_(weights, kept)

    def _pieces(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Every weight with its part of a flat vector."""
        start = 0
        for parameter in self._parameters:
            yield parameter, vector[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


class PointRun(Protocol):
    """A point at work in one run.

    Guarantees:
        It sees noised answers and released weights, nothing private. What it remembers changes in
        `gradient` alone, so that a step that failed leaves it as it was.
    """

    def offset(self, answers: Sequence[Tensor]) -> Tensor | None:
        """How far the weights are moved for the next query of this step, as a flat vector.

        Args:
            answers: the noised gradients of the step's queries so far.
        """

    def gradient(self, answers: Sequence[Tensor]) -> Tensor:
        """The step's private gradient, from the answers to all its queries."""

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on; public, since it is made from released numbers."""

    def load(self, state: dict[str, Tensor]) -> None:
        """Load what `state` returned."""


class StatelessPointRun:
    """A point at work that has no state between steps."""

    def state(self) -> dict[str, Tensor]:
        """There is no state."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """There is no state."""


@runtime_checkable
class Point(Protocol):
    """Where the gradient is taken: the public constants.

    Guarantees:
        Every step queries the batch `queries` times, whatever the answers are.
    """

    @property
    def queries(self) -> int:
        """How many queries of the same batch one step makes."""

    def begin(self, weights: MovableWeights) -> PointRun:
        """Start a run over these weights."""
