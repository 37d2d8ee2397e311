"""Plain steps on public records between the private steps of a run."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from steppe.clipping import GEP
from steppe.plan import Plan
from steppe.pretraining import Batches
from steppe.private import Private, refuse_noise_aware
from steppe.records import as_records
from steppe.training.groups import Objective, PrivateData
from steppe.utils import validation


class PublicSteps:
    """After every few private steps one on a batch of public records, in shuffled epochs.

    A step's batch depends on its number alone, so that a resumed run continues with the next one.

    Args:
        public: the public records, in any form that training data may have.
        batch_size: of a step.
        every: private steps between two public ones.
    """

    def __init__(self, public: Any, batch_size: int, every: int) -> None:
        self._rows, self._every = as_records(public), every
        if batch_size > len(self._rows):
            rule = f"must be at most the number of public records, {len(self._rows)}"
            raise validation.fail("public_batch", batch_size, rule, "give a smaller batch")
        self._batches = Batches(len(self._rows), batch_size, seed=0)

    def after(self, step: int, private: Private) -> None:
        """Take a public step where one is due.

        Args:
            step: the private steps that were taken or lost so far.
            private: of the run.
        """
        number, rest = divmod(step, self._every)
        if not rest:
            private.public_step(self._rows.batch(self._batches.update(number - 1)))


def public_steps_of(
    objective: Objective, data: PrivateData, optimizer: Optimizer
) -> PublicSteps | None:
    """The public steps of a run, or None."""
    if objective.public_batch is None:
        if objective.public_every != 1:
            rule = "is for public steps, and there are none"
            remedy = "give public_batch too, or leave it out"
            raise validation.fail("public_every", objective.public_every, rule, remedy)
        return None
    if data.public is None:
        raise validation.missing(
            "public", "give public records, or leave out public_batch", "is needed by public steps"
        )
    refuse_noise_aware(optimizer)
    return PublicSteps(data.public, objective.public_batch, objective.public_every)


def public_for_clip(plan: Plan, data: PrivateData, steps: PublicSteps | None) -> Any:
    """The public records that the clip gets: none if it needs none and they are for steps."""
    return data.public if steps is None or isinstance(plan.clip, GEP) else None
