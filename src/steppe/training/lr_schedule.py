"""Learning-rate schedulers of torch, one step of the plan at a time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from steppe.utils import validation


class LRSchedule:
    """A torch scheduler, or none.

    A schedule follows the plan's steps: after an interruption it skips the steps that were lost, so
    that it ends with the plan.

    Args:
        scheduler: any torch scheduler; `ReduceLROnPlateau` follows the loss on evaluation data.
        optimizer: the run's, which the scheduler must be over.
        evaluated: whether there are evaluation data.
        held_out: whether these are private records that were kept out of training.
    """

    def __init__(
        self,
        scheduler: LRScheduler | None,
        optimizer: Optimizer,
        evaluated: bool,
        held_out: bool = False,
    ) -> None:
        if scheduler is not None and not isinstance(scheduler, LRScheduler):
            raise validation.fail(
                "scheduler",
                type(scheduler).__name__,
                "must be a torch learning-rate scheduler",
                "create one from torch.optim.lr_scheduler with the same optimizer",
            )
        if scheduler is not None and scheduler.optimizer is not optimizer:
            rule = "belongs to another optimizer, so it would not change the run's learning rate"
            remedy = "create it with the optimizer that you pass as optimizer="
            raise validation.fail("scheduler", type(scheduler).__name__, rule, remedy)
        self._optimizer = optimizer
        self._plateau = scheduler if isinstance(scheduler, ReduceLROnPlateau) else None
        self._by_step = None if self._plateau is not None else scheduler
        if self._plateau is not None and not evaluated:
            raise validation.fail(
                "scheduler",
                "ReduceLROnPlateau",
                "follows a loss that must not come from the private data",
                "pass evaluate=, with public or held-out data",
            )
        if self._plateau is not None and held_out:
            raise validation.fail(
                "scheduler",
                "ReduceLROnPlateau",
                "follows the loss on private records that holdout keeps out, so the released "
                "weights would depend on them without noise",
                "use a schedule by steps, or evaluate on public data instead",
            )

    def require_loss(self, scores: Mapping[str, float]) -> None:
        """Require that the scores contain the loss, if the scheduler follows it."""
        if self._plateau is not None and "loss" not in scores:
            raise validation.fail(
                "scheduler",
                "ReduceLROnPlateau",
                f"follows a loss, and evaluate= gives {', '.join(scores)}",
                "let the function return {'loss': …} too",
            )

    def rehearse(self, steps: int) -> None:
        """Run the schedule through all steps of a plan and reset it, so that none fails later."""
        if self._by_step is None:
            return
        before = copy.deepcopy(self._by_step.state_dict())
        groups = [
            copy.deepcopy({key: value for key, value in group.items() if key != "params"})
            for group in self._optimizer.param_groups
        ]
        try:
            self.step(steps)
        except Exception as error:  # schedulers check little when they are made
            raise validation.fail(
                "scheduler",
                type(self._by_step).__name__,
                f"fails within the {steps} steps of the plan: {type(error).__name__}: "
                + str(error).rstrip("."),
                "correct its arguments",
            ) from error
        finally:
            self._by_step.load_state_dict(before)
            for group, kept in zip(self._optimizer.param_groups, groups, strict=True):
                group.update(kept)

    def step(self, steps: int = 1) -> None:
        """Advance by one step of the plan, or by several that were lost."""
        if self._by_step is None:
            return
        with warnings.catch_warnings():
            # For steps lost before the first checkpoint there was no optimizer step.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            for _ in range(steps):
                self._by_step.step()

    def loss(self, loss: float | None) -> None:
        """Report the latest loss on evaluation data."""
        if self._plateau is not None and loss is not None:
            self._plateau.step(loss)

    def state_dict(self) -> dict[str, Any] | None:
        """The scheduler's own state."""
        scheduler = self._plateau or self._by_step
        return None if scheduler is None else scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load a saved state."""
        scheduler = self._plateau or self._by_step
        if scheduler is not None and state is not None:
            scheduler.load_state_dict(state)
