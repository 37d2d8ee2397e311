"""The loop of a run: charge, step, average, evaluate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from steppe.averaging import CheckpointStore
from steppe.citations import bibtex
from steppe.errors import SteppeError
from steppe.ledger import pause_quietly
from steppe.noise import Correlated
from steppe.private import Private
from steppe.runs import Interrupted, Log, StopRequest
from steppe.training import fingerprint, results
from steppe.training.callbacks import StepInfo
from steppe.training.comparison import HeldOutScore, compared
from steppe.training.epsilon_curve import EpsilonCurve
from steppe.training.evaluation import Evaluation
from steppe.training.ledger_summary import ledger_line, without_machine
from steppe.training.opening import OpenRun
from steppe.training.outcome import Outcome, promised, row
from steppe.training.parts import RunParts
from steppe.training.progress import Bar
from steppe.training.resume_checkpoints import Checkpoint, ResumeCheckpoints
from steppe.training.run_averages import Scored
from steppe.utils.formatting import finite, rounded_up
from steppe.utils.user_code import kind_and_line

Table = tuple[Mapping[str, Any], ...]
# How often the speed is logged.
_SECONDS_BETWEEN_NOTES = 2.0


class Loop:
    """One uninterrupted part of a run: all of it, or from a checkpoint to the end.

    Args:
        parts: of the run.
        open_run: the account, which charges the steps, and the privacy statement.
        private: takes the steps.
        store: receives checkpoints; None if none are stored.
        seconds: time spent in earlier parts.
        lost: steps charged in earlier parts that are not in these weights.
    """

    def __init__(
        self,
        parts: RunParts,
        open_run: OpenRun,
        private: Private,
        store: CheckpointStore | None,
        seconds: float = 0.0,
        lost: int = 0,
    ) -> None:
        self._parts, self._private, self._store = parts, private, store
        self._account, self._statement = open_run.account, open_run.statement
        self._named_ledger = open_run.named_ledger
        self._lost, self._saved = lost, -1
        self._scoring_error: str | None = None
        self._whole = False  # whether averages, schedule and store are up to date with the step
        self._epsilon = EpsilonCurve(parts.plan)
        self._checkpoints = ResumeCheckpoints(parts.folder.checkpoints)
        self._begun = time.monotonic() - seconds

    def run(self, notes: Iterable[str] = (), shown: Iterable[str] = ()) -> Outcome:
        """Train to the plan's last step, or until Ctrl-C, and write the results.

        Args:
            notes: lines for the log and above the bar.
            shown: lines above the bar alone, about what is outside of the run's folder.
        """
        parts, private = self._parts, self._private
        with (
            StopRequest() as stop,
            Log(parts.folder.log) as self._log,
            Bar(parts.progress, parts.plan.total_steps, private.steps_done) as self._bar,
        ):
            if self._reason is not None:
                self._say(f"NOT PRIVATE: {self._reason}")
            elif self._statement.caution is not None:  # the trainer has shown it
                self._write("note", {"text": f"WARNING: {self._statement.caution}"})
            if named := self._named_ledger:
                logged = ledger_line(**without_machine(named, parts.folder.path))
                self._say(ledger_line(**named), logged)
            for text in notes:
                self._say(text)
            for text in shown:
                self._bar.say(text)
            try:
                over = self._steps(stop)
                self.save(over)
            except BaseException as error:
                # Other than after a crash, the number of steps that were begun is known.
                if self._whole and isinstance(error, Exception):
                    with suppress(OSError, SteppeError):
                        self.save()  # a callback or an evaluation failed, and the step did not
                pause_quietly(self._account, private.steps_done)
                raise
            self._account.pause(private.steps_done)
            if not over:
                raise self._interrupted()
            return self._finish()

    def save(self, over: bool = False) -> None:
        """Write a resumable checkpoint, unless this step has one.

        Args:
            over: whether the run has ended. Then noise that no step will take back is not written,
                and checkpoints that contain it are removed.
        """
        parts, step = self._parts, self._private.steps_done
        secret = over and isinstance(parts.plan.noise, Correlated)
        if step == self._saved and not secret:
            return
        private = self._private.state_dict()
        if secret:
            private["noise"] = {}
        self._checkpoints.save(
            Checkpoint(
                step=step,
                run=self._account.run.id,
                settings=fingerprint.digest(parts.fingerprint),
                anchor=self._account.anchor,
                seconds=self._seconds,
                lost=self._lost,
                state={
                    "model": parts.model.state_dict(),
                    "optimizer": parts.optimizer.state_dict(),
                    "scheduler": parts.schedule.state_dict(),
                    "averages": parts.averages.state_dict(),
                    "private": private,
                },
                not_private_reason=self._reason,
            ),
            alone=secret,
        )
        self._saved = step

    def _steps(self, stop: StopRequest) -> bool:
        """Take steps. False if Ctrl-C stopped them before the end of the run."""
        private, total = self._private, self._parts.plan.total_steps
        batches = iter(private)
        noted = time.monotonic()
        while private.steps_done < total:
            if stop.made:
                return False
            self._account.cover(private.steps_done + 1)
            batch = next(batches)
            self._whole = False
            private.step(batch)
            if (public := self._parts.public_steps) is not None:
                public.after(private.steps_done, private)
            if self._after_step():
                return True
            if time.monotonic() - noted > _SECONDS_BETWEEN_NOTES:
                noted = time.monotonic()
                self._write("progress", {"rate": self._rate})
        return True

    def _after_step(self) -> bool:
        """Average, store, evaluate and save after a step. True if a callback ends the run."""
        parts, step = self._parts, self._private.steps_done
        steps, intervals = parts.plan.total_steps, parts.intervals
        epsilon = self._epsilon(step)
        shown = promised(epsilon, self._reason)
        parts.averages.update()
        parts.schedule.step()
        if self._store is not None and intervals.store and step % intervals.store == 0:
            self._store.append(parts.model, step, shown)
        self._whole = True
        table = self._evaluated() if step % intervals.evaluation == 0 and step < steps else ()
        if step % intervals.checkpoint == 0:
            self.save()
        self._bar.step(shown)
        spent = epsilon if self._reason is None else math.inf
        info = StepInfo(step, steps, spent, self._seconds, parts.model, table)
        answers = [callback(info) for callback in parts.callbacks]  # all of them are called
        return any(isinstance(answer, bool | np.bool_) and answer for answer in answers)

    def _evaluated(self, final: bool = False) -> Table:
        """Score the last weights and the averages on the evaluation data."""
        evaluation, averages = self._parts.evaluation, self._parts.averages
        if evaluation is None:
            return ()
        trained = self._seconds
        found = list(averages.scores(evaluation))
        if final and self._store is not None:
            found += self._output_scores(evaluation, self._store)
        table = tuple(row(one.name, one.scores) for one in found)
        # Exact, because figures show scores against it.
        epsilon = self._spent(self._epsilon.exactly)
        for line in table:
            self._write("evaluation", line, epsilon)
        loss = table[0]["loss"]
        self._bar.loss(loss)
        if not final:
            self._parts.schedule.loss(loss)
            return table
        return tuple(
            {**line, "seconds": trained + one.seconds}
            for line, one in zip(table, found, strict=True)
        )

    def _output_scores(self, evaluation: Evaluation, store: CheckpointStore) -> list[Scored]:
        """The scores of averages of outputs; none, with a note, if they cannot be computed."""
        if self._parts.averages.averages_outputs and not evaluation.has_targets:
            self._say("outputs are not averaged: evaluate= is a function and has no targets")
            return []
        try:
            return list(self._parts.averages.output_scores(evaluation, store))
        except Exception as error:
            self._say(f"outputs are not averaged: {kind_and_line(error)}")
            return []

    def _final_table(self) -> Table:
        """The scores of all models; none if the evaluation fails.

        The models are on the disk already, so an error of an evaluation must not end the run.
        """
        try:
            return self._evaluated(final=True)
        except Exception as error:
            self._scoring_error = type(error).__name__
            self._say(f"there is no table of scores: {kind_and_line(error)}")
            return ()

    def _comparison(self, published: str) -> HeldOutScore | None:
        """How good the published model is beside a constant; None if that cannot be said."""
        parts = self._parts
        if parts.evaluation is None or self._scoring_error is not None:
            return None
        average = parts.averages.averages.get(published)
        with average.applied(parts.model) if average is not None else nullcontext():
            try:
                return compared(parts.evaluation, parts.model)
            except Exception as error:  # the table above has the scores
                self._say(f"there is no comparison: {kind_and_line(error)}")
                return None

    def _finish(self) -> Outcome:
        """Write weights, averages and the result."""
        parts, plan, private = self._parts, self._parts.plan, self._private
        seconds = self._seconds
        about = {"plan": plan.digest(), "step": str(private.steps_done)}
        published = results.model_to_publish(parts.published, parts.averages, self._say)
        results.write_models(
            parts.folder, parts.model, parts.whole, parts.averages, published, about, self._reason
        )
        outcome = Outcome(
            table=self._final_table(),
            published=published,
            epsilon=promised(plan.epsilon_spent(self._account.charged), self._reason),
            delta=plan.delta,
            steps=private.steps_done - self._lost,
            lost=self._lost,
            seconds=seconds,
            run=parts.folder.path,
            statement=self._statement,
            ledger=results.ledger_facts(parts.ledger, plan.delta, self._named_ledger, self._say),
            scoring_error=self._scoring_error,
            comparison=self._comparison(published),
        )
        citation = bibtex(plan, parts.optimizer, *parts.averages.methods)
        results.write_result(parts.folder.result, outcome, citation, private.report())
        return outcome

    def _interrupted(self) -> Interrupted:
        step, how = self._private.steps_done, self._parts.folder.how_to_resume
        epsilon = rounded_up(self._spent(self._epsilon.exactly), 4)
        text = f"stopped after step {step} of {self._parts.plan.total_steps} at ε = {epsilon}"
        self._write("note", {"text": text})
        return Interrupted(f"{text}; nothing is lost; resume with: {how}")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _rate(self) -> float:
        return round((self._private.steps_done - self._lost) / max(self._seconds, 1e-9), 3)

    @property
    def _reason(self) -> str | None:
        """Why the run is not private, if so."""
        return self._statement.not_private_reason

    def _say(self, text: str, logged: str | None = None) -> None:
        """Show a line above the bar and log it, or log another text with less about the machine."""
        self._write("note", {"text": text if logged is None else logged})
        self._bar.say(text)

    def _write(self, kind: str, fields: Mapping[str, Any], epsilon: float | None = None) -> None:
        """Write a line of the log, with the given ε or else an upper bound."""
        if epsilon is None:
            epsilon = self._spent(self._epsilon)
        seconds = round(self._seconds, 3)
        line = {"kind": kind, "step": self._private.steps_done, "epsilon": epsilon}
        self._log.write({**line, "seconds": seconds, **finite(fields)})

    def _spent(self, after: Callable[[int], float]) -> float | None:
        """The ε of the steps so far by a lookup; None for a run that is not private.

        The lookup takes time, and no file of such a run shows ε.
        """
        return None if self._reason is not None else after(self._private.steps_done)
