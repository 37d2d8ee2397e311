"""The result of pre-training, and the files of its run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.errors import MisuseError
from steppe.starts import Card
from steppe.utils import validation


@dataclass(frozen=True)
class PretrainingOutcome:
    """The result of pre-training.

    Args:
        start: the file with the weights, which `[model] start` and `load_start` take.
        card: what it says.
        scores: on held-out public records; empty without them.
        steps: taken.
        seconds: over all parts of the run.
        gradients: of single records, computed in all steps.
        times_standard: how many times those of `Standard` with the same batch and steps.
        run: the folder.
    """

    start: Path
    card: Card
    scores: Mapping[str, float]
    steps: int
    seconds: float
    gradients: int
    times_standard: float
    run: Path

    def __str__(self) -> str:
        shown = [f"{name} {value:.4f}" for name, value in self.scores.items()]
        scores = f"held-out {', '.join(shown)}" if shown else "no held-out records"
        return "\n".join(
            (
                f"{scores}, after {self.steps} steps in {self.seconds:.1f} s",
                f"gradients: {self.gradients:,}, {self.times_standard:.3g} times as many as "
                "standard training",
                f"start: {self.start}",
                f"card: {self.card.sentence}",
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "start": str(self.start),
            "scores": dict(self.scores),
            "steps": self.steps,
            "seconds": self.seconds,
            "gradients": self.gradients,
            "times_standard": self.times_standard,
            "card": self.card.sentence,
        }


class PretrainingFolder:
    """The paths of a run's files.

    Args:
        path: the folder; None makes a new one under `runs/`, named by date and time.
    """

    def __init__(self, path: str | Path | None) -> None:
        if path is None:
            now = time.strftime("%Y%m%d-%H%M%S", time.localtime())
            path = Path("runs") / f"pre-{now}-{secrets.token_hex(2)}"
        self.path = validation.path("run", path, 'write run="runs/pre"')
        self.config = self.path / "config.json"
        self.toml = self.path / "pre.toml"
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.start = self.path / "start.safetensors"
        self.result = self.path / "result.json"

    @property
    def how_to_resume(self) -> str:
        """The command or call that resumes the run in this folder."""
        if self.toml.exists():
            return f"steppe pretrain --resume {self.path}"
        return f"steppe.pretrain(…, run={str(self.path)!r}, resume=True)"

    def require_free(self) -> None:
        """Require a folder without another run."""
        if self.path.exists() and not self.path.is_dir():
            raise validation.fail("run", str(self.path), "is a file", "name a folder, new or empty")
        if any((self.path / name).exists() for name in ("config.json", "checkpoints", "store")):
            remedy = f"resume it with `{self.how_to_resume}`, or name another folder"
            raise MisuseError.about("run", str(self.path), "contains a run already", remedy)
