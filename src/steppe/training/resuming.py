"""Where a run goes on: its newest checkpoint, held against the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steppe.errors import DataError
from steppe.ledger import Ledger
from steppe.training.folder import RunFolder
from steppe.training.resume_checkpoints import Checkpoint, ResumeCheckpoints

if TYPE_CHECKING:
    from steppe.training.trainer import Trainer


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
            f"are gone, and {known.charged} steps are charged",
            "put them back, or begin a new run in another folder",
        )
    return None, ()


def lost_after(checkpoint: Checkpoint, charged: int) -> int:
    """How many steps were charged after a checkpoint and are not in its weights."""
    if charged < checkpoint.step:
        raise DataError(
            f"checkpoint={checkpoint.step}: is ahead of the ledger, which has {charged} steps of "
            "this run; put the files of one run together."
        )
    return charged - checkpoint.step


def restore(trainer: Trainer, checkpoint: Checkpoint, charged: int) -> tuple[str, ...]:
    """Weights, optimizer and averages as they were; the schedule as if no step had been lost.

    Returns:
        A complaint about the store, if it is damaged and was set aside: the checkpoint itself is
        whole, and what was paid for goes on.
    """
    state = checkpoint.state
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.schedule.load_state_dict(state["scheduler"])
    trainer.schedule.step(charged - checkpoint.step)
    complaints: tuple[str, ...] = ()
    try:
        if (store := trainer.open_store()) is not None:
            store.rewind(checkpoint.step)
    except DataError as error:
        aside = trainer.folder.set_store_aside()
        complaints = (f"{error} The store is now {aside.name}; a new one begins here.",)
        store = trainer.open_store()
    trainer.kept.open(store)
    trainer.kept.load_state_dict(state["kept"])
    return complaints


def note(step: int, lost: int) -> str:
    """For the log and the screen."""
    text = f"resumed from the checkpoint after step {step}"
    if lost:
        text += f"; {lost} steps were charged after it and are lost"
    return text
