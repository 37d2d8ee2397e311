"""What a checkpoint of transformers needs so that a private run can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from steppe.errors import DataError
from steppe.ledger import Account, Anchor
from steppe.plan import Plan
from steppe.private import Private
from steppe.runs import CheckpointFolder, StoredState

_FOLDER = "privacy"


@dataclass(frozen=True)
class ResumeState:
    """The privacy part of a checkpoint.

    Attributes:
        run: the run's id in the ledger.
        anchor: of the ledger when the checkpoint was written.
        state: of the private object.
    """

    run: str
    anchor: Anchor
    state: Mapping[str, Any]


def write_state(checkpoint: Path, private: Private, account: Account) -> None:
    """Write the state of a run into a folder with a checkpoint, after a step."""
    anchor = account.anchor
    facts = {"run": account.run.id, "anchor": {"length": anchor.length, "head": anchor.head}}
    # Often the private object has no tensors, and a file without any cannot be read.
    state = {"private": private.state_dict(), "steps": torch.tensor(private.steps_done)}
    stored = StoredState(private.steps_done, facts, state)
    CheckpointFolder(checkpoint / _FOLDER).save(stored, account.run.not_private_reason)


def read_state(checkpoint: Path, plan: Plan) -> ResumeState:
    """Read what `write_state` has written, for a run of the same plan."""
    stored, _ = CheckpointFolder(checkpoint / _FOLDER).newest()
    if stored is None:
        raise DataError.about(
            "resume_from_checkpoint",
            str(checkpoint),
            "is not a checkpoint of a private run",
            "name one that PrivateTrainer has saved",
        )
    state = stored.state["private"]
    if state["plan"] != plan.digest():
        raise DataError.about(
            "resume_from_checkpoint",
            str(checkpoint),
            "belongs to a run of another plan",
            "use the TrainingArguments and the plan= that it began with",
        )
    anchor = Anchor(**stored.facts["anchor"])
    return ResumeState(stored.facts["run"], anchor, state)
