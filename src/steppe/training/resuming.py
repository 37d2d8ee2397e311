"""Resumes a run from its newest checkpoint and its ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from steppe.averaging import CheckpointStore
from steppe.errors import DataError
from steppe.ledger import Ledger
from steppe.training.folder import RunFolder
from steppe.training.lr_schedule import LRSchedule
from steppe.training.resume_checkpoints import Checkpoint, ResumeCheckpoints
from steppe.training.run_averages import RunAverages


def newest(
    folder: RunFolder, config: Mapping[str, Any], ledger: Ledger
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest undamaged checkpoint of a run.

    Args:
        folder: the run's files.
        config: the content of `config.json`.
        ledger: of the run.

    Returns:
        The checkpoint, and the errors of newer ones that are damaged. None for a run that has not
        begun: the first checkpoint is written before the first charge.
    """
    checkpoint, complaints = ResumeCheckpoints(folder.checkpoints).newest()
    if checkpoint is not None:
        checkpoint.require_of(config["run"], config["digest"])
        return checkpoint, tuple(complaints)
    known = ledger.runs().get(config["run"])
    if known is not None and known.charged:
        raise DataError.about(
            "checkpoints",
            str(folder.checkpoints),
            f"are missing, but {known.charged} steps are charged",
            "restore them, or start a new run in another folder",
        )
    return None, ()


def lost_after(checkpoint: Checkpoint, charged: int) -> int:
    """The number of steps that were charged after a checkpoint."""
    if charged < checkpoint.step:
        raise DataError(
            f"checkpoint={checkpoint.step}: is ahead of the ledger, which has {charged} steps of "
            "this run; keep the files of one run together."
        )
    return charged - checkpoint.step


def require_noise(state: Mapping[str, Any], lost: int) -> None:
    """Refuse to go on with correlated noise after steps that no checkpoint contains.

    What these steps released contains noise that is lost. Other noise in its place would be a
    second answer about the same records, which the plan does not pay for.

    Args:
        state: of the private object, in the checkpoint.
        lost: steps that were charged after the checkpoint.
    """
    if lost and state.get("noise"):
        raise DataError.about(
            "checkpoint",
            state["steps_done"],
            f"is older than the {lost} steps charged after it, whose correlated noise is lost, so "
            "this run cannot go on: other noise in its place would cost more than the plan says",
            "start a new run; its ledger adds the steps charged here if both share one",
        )


def rewound(
    open_store: Callable[[], CheckpointStore | None], folder: RunFolder, step: int
) -> tuple[CheckpointStore | None, tuple[str, ...]]:
    """The run's store, reset to a step. A damaged store is renamed and a new one begins.

    Args:
        open_store: opens the store; returns None if there is none.
        folder: the run's files.
        step: of the checkpoint.

    Returns:
        The store, and the error if it was damaged. The run continues, because its checkpoint is
        undamaged.
    """
    try:
        if (store := open_store()) is not None:
            store.rewind(step)
    except DataError as error:
        aside = folder.set_store_aside()
        return open_store(), (f"{error} The store is now {aside.name}; a new one begins here.",)
    return store, ()


def restore(
    checkpoint: Checkpoint,
    charged: int,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRSchedule,
    averages: RunAverages,
    store: CheckpointStore | None,
) -> None:
    """Restore weights, optimizer and averages. The schedule also skips the lost steps.

    Args:
        checkpoint: to resume from.
        charged: how many of the plan's steps are charged.
        model, optimizer, schedule, averages: of the run; they receive their state.
        store: where averages write snapshots, if any.
    """
    state = checkpoint.state
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["scheduler"])
    schedule.step(charged - checkpoint.step)
    averages.open(store)
    averages.load_state_dict(state["averages"])


def note(step: int, lost: int) -> str:
    """The line about a resumed run."""
    text = f"resumed from the checkpoint after step {step}"
    if lost:
        text += f"; {lost} steps were charged after it and are lost"
    return text
