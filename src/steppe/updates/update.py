"""Place 6: the protocol of an update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch.optim import Optimizer

from steppe.updates.dp_adam import DPAdam

if TYPE_CHECKING:
    from steppe.plan import Plan


class Update(Protocol):
    """An optimizer's part in a step of a plan."""

    def at_step(self, step: int, noise_std: float) -> None:
        """Called before a step.

        Args:
            step: its number, counted from 0, also where steps were lost.
            noise_std: the noise that the plan puts on its mean gradient.
        """


class PlainUpdate:
    """An optimizer that does not depend on the noise."""

    def at_step(self, step: int, noise_std: float) -> None:
        """Nothing depends on either."""


def update_of(optimizer: Optimizer, plan: Plan) -> Update:
    """The part of an optimizer in the steps of a plan; refused where their noise differs."""
    if not isinstance(optimizer, DPAdam):
        return PlainUpdate()
    optimizer.require_noise_of(plan)
    return optimizer
