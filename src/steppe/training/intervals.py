"""The number of steps between evaluations, checkpoints and charges of a run."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.training.groups import Saving
from steppe.utils import validation

# A crash costs the steps since the last checkpoint: at most a twentieth of the plan.
_CHECKPOINTS = 20
_EVALUATIONS = 10
_LONGEST_BLOCK = 50


@dataclass(frozen=True)
class StepIntervals:
    """Numbers of steps.

    Args:
        checkpoint: between resumable checkpoints.
        evaluation: between evaluations.
        store: between stored checkpoints; None stores none.
        block: charged to the ledger at a time.
    """

    checkpoint: int
    evaluation: int
    store: int | None
    block: int


def intervals_of(saving: Saving, block: int | None, steps: int) -> StepIntervals:
    """The intervals that were given, with defaults that depend on the length of the plan.

    Examples:
        >>> intervals_of(Saving(store_every=5), None, steps=400)
        StepIntervals(checkpoint=20, evaluation=40, store=5, block=20)
    """
    checkpoint = saving.checkpoint_every or max(1, steps // _CHECKPOINTS)
    return StepIntervals(
        checkpoint=checkpoint,
        evaluation=saving.evaluate_every or max(1, steps // _EVALUATIONS),
        store=within_plan(saving.store_every, steps),
        block=block or min(checkpoint, _LONGEST_BLOCK),
    )


def within_plan(store_every: int | None, steps: int) -> int | None:
    """Check that a run of so many steps stores a checkpoint."""
    if store_every is not None and store_every > steps:
        rule = f"would store no checkpoint in the {steps} steps of the plan"
        remedy = f"give at most {steps}, or leave it out"
        raise validation.fail("store_every", store_every, rule, remedy)
    return store_every
