"""What the methods of pre-training share: where the gradient is taken, and from which batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

Tensors = Sequence[Tensor]
"""One tensor for each trained weight, in the order of the model."""


class Gradients(Protocol):
    """Mean gradients at the current weights, each over a batch."""

    def of_update_batch(self) -> Tensors:
        """Over the batch that the step updates with."""

    def of_fresh_batch(self, records: int) -> Tensors:
        """Over so many records, drawn for this call alone."""


class Method(Protocol):
    """A method: frozen constants, which `begin` makes a run of."""

    @property
    def perturbation_batch(self) -> int:
        """The largest batch that it draws for itself; 0 if it draws none."""

    def begin(self, weights: Tensors) -> MethodRun:
        """Start a run over these weights.

        Args:
            weights: the trained weights, which change during the run.
        """


class MethodRun(Protocol):
    """A method at work in one run."""

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """How far the weights are moved for the update's gradient; None for not at all.

        Args:
            step: from 0.
            gradients: computes gradients at the weights where the step begins.
        """

    def observe(self, gradient: Tensors) -> None:
        """See the update's gradient, for methods that learn from it."""

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


class StatelessRun:
    """A run without state; the base of most methods."""

    def observe(self, gradient: Tensors) -> None:
        """See the update's gradient."""

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on: nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
