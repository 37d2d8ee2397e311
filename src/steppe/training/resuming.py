"""Where a run goes on: its newest checkpoint, compared with the ledger."""

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
    """The newest whole checkpoint of a run.

    Args:
        folder: the run's files.
        config: what its `config.json` says.
        ledger: what was spent.

    Returns:
        The checkpoint, and complaints about newer ones that are damaged. None for a run that has
        not begun: the first checkpoint comes before the first charge.
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
    """How many steps were charged after a checkpoint and are not in its weights."""
    if charged < checkpoint.step:
        raise DataError(
            f"checkpoint={checkpoint.step}: is ahead of the ledger, which has {charged} steps of "
            "this run; keep the files of one run together."
        )
    return charged - checkpoint.step


def rewound(
    open_store: Callable[[], CheckpointStore | None], folder: RunFolder, step: int
) -> tuple[CheckpointStore | None, tuple[str, ...]]:
    """The run's store as it was after a step; one that is damaged is set aside for a new one.

    Args:
        open_store: opens it; there may be none.
        folder: the run's files.
        step: of the checkpoint.

    Returns:
        The store, and a complaint if it was damaged: the checkpoint itself is whole, and what was
        paid for goes on.
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
    """Weights, optimizer and averages as they were; the schedule as if no step had been lost.

    Args:
        checkpoint: to go on from.
        charged: how many of the plan's steps are charged.
        model, optimizer, schedule, averages: of the run, which receive their state.
        store: where averages write snapshots, if they do.
    """
    state = checkpoint.state
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["scheduler"])
    schedule.step(charged - checkpoint.step)
    averages.open(store)
    averages.load_state_dict(state["averages"])


def note(step: int, lost: int) -> str:
    """For the log and the screen."""
    text = f"resumed from the checkpoint after step {step}"
    if lost:
        text += f"; {lost} steps were charged after it and are lost"
    return text
