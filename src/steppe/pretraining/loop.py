"""The loop of pre-training: step, log, evaluate, save."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from steppe.errors import MisuseError
from steppe.pretraining.data import PublicData
from steppe.pretraining.method import MethodRun
from steppe.pretraining.objectives import PublicObjective
from steppe.pretraining.outcome import PretrainingFolder
from steppe.pretraining.step import PublicStep
from steppe.runs import CheckpointFolder, Interrupted, Log, StopRequest, StoredState
from steppe.utils.formatting import finite

_SECONDS_BETWEEN_NOTES = 2.0
Callback = Callable[[int, nn.Module], Any]


@dataclass(frozen=True)
class PretrainingParts:
    """What a run of pre-training is made of.

    Args:
        model: with the layers that the objective needs.
        optimizer, scheduler: in use.
        data: the public records.
        objective: the loss.
        method: at work in this run.
        step: takes the steps.
        steps: of the whole run.
        folder: its files.
        settings: digest of the configuration.
        checkpoint_every, evaluate_every: steps between checkpoints and evaluations.
        callbacks: called after each step with the number of steps taken and the model; one that
            returns True ends the run.
        progress: whether to show a bar.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    data: PublicData
    objective: PublicObjective
    method: MethodRun
    step: PublicStep
    steps: int
    folder: PretrainingFolder
    settings: str
    checkpoint_every: int
    evaluate_every: int
    callbacks: Sequence[Callback]
    progress: bool


class PretrainingLoop:
    """One uninterrupted part of a run."""

    def __init__(self, parts: PretrainingParts) -> None:
        self._parts = parts
        self._done, self._saved = 0, -1
        self._begun = time.monotonic()
        self._loss = math.nan
        self._files = CheckpointFolder(parts.folder.checkpoints)

    @property
    def seconds(self) -> float:
        """Over all parts of the run."""
        return time.monotonic() - self._begun

    @property
    def done(self) -> int:
        """The number of steps taken."""
        return self._done

    def restore(self) -> str:
        """Continue from the newest checkpoint; returns a line about it."""
        parts = self._parts
        stored, complaints = self._files.newest()
        if stored is None:
            return "nothing was saved: the run begins again"
        if stored.facts["settings"] != parts.settings:
            rule = "belongs to another run than config.json"
            raise MisuseError.about("checkpoint", stored.step, rule, "keep a run's files together")
        parts.model.load_state_dict(stored.state["model"])
        parts.optimizer.load_state_dict(stored.state["optimizer"])
        if parts.scheduler is not None:
            parts.scheduler.load_state_dict(stored.state["scheduler"])
        parts.method.load_state_dict(stored.state["method"])
        parts.step.gradients = stored.facts["gradients"]
        self._done = self._saved = stored.step
        self._begun = time.monotonic() - stored.facts["seconds"]
        return " ".join((*complaints, f"resumed from the checkpoint after step {stored.step}"))

    def run(self, note: str | None = None) -> dict[str, float]:
        """Train to the last step, or until Ctrl-C.

        Args:
            note: a line for the log and above the bar.

        Returns:
            The final scores on held-out records.
        """
        parts = self._parts
        with (
            StopRequest() as stop,
            Log(parts.folder.log) as self._log,
            _bar(parts.progress, parts.steps, self._done) as bar,
            torch.random.fork_rng(),
        ):
            if note is not None:
                self._write("note", {"text": note})
                bar.write(note, file=sys.stderr)
            over = self._steps(stop, bar)
            self.save()
            if not over:
                text = f"stopped after step {self._done} of {parts.steps}"
                self._write("note", {"text": text})
                raise Interrupted(f"{text}; resume with: {parts.folder.how_to_resume}")
            return self._evaluated()

    def save(self) -> None:
        """Write a resumable checkpoint, unless this step has one."""
        parts = self._parts
        if self._saved == self._done:
            return
        state = {
            "model": parts.model.state_dict(),
            "optimizer": parts.optimizer.state_dict(),
            "scheduler": None if parts.scheduler is None else parts.scheduler.state_dict(),
            "method": parts.method.state_dict(),
        }
        facts = {
            "settings": parts.settings,
            "seconds": self.seconds,
            "gradients": parts.step.gradients,
        }
        self._files.save(StoredState(self._done, facts, state))
        self._saved = self._done

    def _steps(self, stop: StopRequest, bar: Any) -> bool:
        """Take steps. False if Ctrl-C stopped them before the end of the run."""
        parts, noted = self._parts, time.monotonic()
        while self._done < parts.steps:
            if stop.made:
                return False
            self._loss = parts.step.take(self._done, parts.method)
            if not math.isfinite(self._loss):
                raise MisuseError.about(
                    "loss",
                    self._loss,
                    f"is not finite in step {self._done + 1}, so the weights are of no use",
                    "give a smaller learning rate, or a smaller cap of the perturbation",
                )
            if parts.scheduler is not None:
                parts.scheduler.step()
            self._done += 1
            bar.update()
            if self._done % parts.evaluate_every == 0 and self._done < parts.steps:
                self._evaluated()
            if self._done % parts.checkpoint_every == 0:
                self.save()
            ends = [callback(self._done, parts.model) for callback in parts.callbacks]
            if any(end is True for end in ends):
                return True
            if time.monotonic() - noted > _SECONDS_BETWEEN_NOTES:
                noted = time.monotonic()
                bar.set_postfix({"loss": f"{self._loss:.4f}"}, refresh=False)
                rate = round(self._done / max(self.seconds, 1e-9), 3)
                self._write("progress", {"rate": rate, "training_loss": self._loss})
        return True

    def _evaluated(self) -> dict[str, float]:
        parts = self._parts
        if parts.data.test_inputs is None:
            return {}
        device = next(parts.model.parameters()).device
        targets = parts.data.test_targets
        scores = parts.objective.scores(
            parts.model,
            parts.data.test_inputs.to(device),
            None if targets is None else targets.to(device),
        )
        self._write("evaluation", {**scores, "training_loss": self._loss})
        return scores

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        seconds = round(self.seconds, 3)
        line = {"kind": kind, "step": self._done, "seconds": seconds, **finite(fields)}
        self._log.write(line)


def _bar(shown: bool, steps: int, begun: int) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=steps, initial=begun, unit="step", dynamic_ncols=True, disable=not shown)
