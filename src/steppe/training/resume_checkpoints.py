"""The last two checkpoints, from which a run can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.errors import DataError
from steppe.ledger import Anchor
from steppe.runs import CheckpointFolder, StoredState


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step.

    Args:
        step: steps of the plan so far, taken or lost.
        run: the run's id in the ledger.
        settings: digest of the configuration.
        anchor: of the ledger when the checkpoint was written.
        seconds: time spent training so far.
        lost: steps that were charged and are not in these weights.
        state: what the next step depends on, except randomness, which is always fresh.
        not_private_reason: why these weights are not private, or None.
    """

    step: int
    run: str
    settings: str
    anchor: Anchor
    seconds: float
    lost: int
    state: Mapping[str, Any]
    not_private_reason: str | None = None

    def require_of(self, run: str, settings: str) -> None:
        """Require a checkpoint of this run and this configuration."""
        if self.run != run or self.settings != settings:
            raise DataError(
                f"checkpoint={self.step}: belongs to another run than config.json; keep the files "
                "of one run in one folder."
            )


class ResumeCheckpoints:
    """A folder of checkpoints of a private run.

    Args:
        folder: created if it does not exist.

    Guarantees:
        As for `CheckpointFolder`. A checkpoint contains only what the private steps released: no
        batch, no seed, no state of a random generator. With correlated noise it also contains noise
        that later steps take back, which is SECRET; the folder is readable by its owner alone, and
        the last checkpoint of a run neither has it nor leaves others behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._files = folder, CheckpointFolder(folder)

    def save(self, checkpoint: Checkpoint, alone: bool = False) -> None:
        """Write a checkpoint. On return it is on the disk.

        Args:
            checkpoint: the state of a run.
            alone: remove all before it; otherwise the last of them is kept.
        """
        anchor = {"length": checkpoint.anchor.length, "head": checkpoint.anchor.head}
        facts = {
            "run": checkpoint.run,
            "settings": checkpoint.settings,
            "anchor": anchor,
            "seconds": checkpoint.seconds,
            "lost": checkpoint.lost,
            "not_private_reason": checkpoint.not_private_reason,
        }
        stored = StoredState(checkpoint.step, facts, checkpoint.state)
        self._files.save(stored, checkpoint.not_private_reason, alone)

    def newest(self) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """The newest undamaged checkpoint, and the errors of newer ones.

        Returns:
            None for a folder without checkpoints.
        """
        stored, complaints = self._files.newest()
        if stored is None:
            return None, complaints
        facts = stored.facts
        found = Checkpoint(
            step=stored.step,
            run=facts["run"],
            settings=facts["settings"],
            anchor=Anchor(**facts["anchor"]),
            seconds=facts["seconds"],
            lost=facts["lost"],
            state=stored.state,
            not_private_reason=facts.get("not_private_reason"),
        )
        return found, complaints
