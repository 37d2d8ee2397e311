"""Learning-rate schedulers of torch, one step of the plan at a time."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from steppe import _validate


class Schedule:
    """A torch scheduler, or none.

    A schedule follows the plan's steps: after an interruption it is moved past the steps that were
    lost, so that it ends where the plan ends.

    Args:
        scheduler: any torch scheduler; `ReduceLROnPlateau` follows the loss on evaluation data.
        evaluated: whether there are such data.
    """

    def __init__(self, scheduler: LRScheduler | None, evaluated: bool) -> None:
        if scheduler is not None and not isinstance(scheduler, LRScheduler):
            raise _validate.fail(
                "scheduler",
                type(scheduler).__name__,
                "must be a torch learning-rate scheduler",
                "make one from torch.optim.lr_scheduler, over the same optimizer",
            )
        self._plateau = scheduler if isinstance(scheduler, ReduceLROnPlateau) else None
        self._by_step = None if self._plateau is not None else scheduler
        if self._plateau is not None and not evaluated:
            raise _validate.fail(
                "scheduler",
                "ReduceLROnPlateau",
                "follows a loss that must not come from the private data",
                "pass evaluate=, with public or held-out data",
            )

    def step(self, steps: int = 1) -> None:
        """Go on by one step of the plan, or by several that were lost."""
        if self._by_step is None:
            return
        with warnings.catch_warnings():
            # Steps lost before the first checkpoint have no optimizer step to go with them.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            for _ in range(steps):
                self._by_step.step()

    def loss(self, loss: float | None) -> None:
        """The newest loss on evaluation data."""
        if self._plateau is not None and loss is not None:
            self._plateau.step(loss)

    def state_dict(self) -> dict[str, Any] | None:
        """The scheduler's own state."""
        scheduler = self._plateau or self._by_step
        return None if scheduler is None else scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a saved state."""
        scheduler = self._plateau or self._by_step
        if scheduler is not None and state is not None:
            scheduler.load_state_dict(state)
