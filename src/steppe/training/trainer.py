"""The trainer: a private run from its first step to its table, safe against crashes."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from steppe.accounting import Statement
from steppe.errors import PrivacyWarning
from steppe.ledger import Anchor, Ledger, LedgerRun
from steppe.models import stored_constants
from steppe.plan import Plan
from steppe.private import Private
from steppe.probing import KINDS
from steppe.randomness import Source
from steppe.training import arguments, fingerprint, groups, resuming
from steppe.training.callbacks import Callback
from steppe.training.folder import RunFolder
from steppe.training.groups import Charging, Objective, PrivateData, Saving
from steppe.training.ledger_summary import ledger_line
from steppe.training.loop import Loop
from steppe.training.opening import OpenRun, named_ledger, opened
from steppe.training.outcome import Outcome
from steppe.training.parts import put_together
from steppe.training.resume_checkpoints import Checkpoint
from steppe.training.run_averages import Keepable
from steppe.training.runs_beside import note, runs_beside
from steppe.utils import validation


class Trainer:
    """Trains a model privately, with ledger, checkpoints, averages and results.

    Some arguments accept a group of settings, a frozen dataclass. With a plain value, all other
    settings of the group have their defaults.

    Args:
        model, plan: as for `make_private`.
        data: the private records, as for `make_private`; or `PrivateData`, which also declares
            their name, classes, groups, public records, and what was read from them before.
        loss: as for `make_private`; or `Objective`, for a function of (model, batch) and for views.
        optimizer: any torch optimizer over the model's trainable weights; None for SGD with the
            learning rate of `recipes.optimizer_for`.
        scheduler: any torch scheduler over that optimizer; it takes one step per step.
        evaluate: public or held-out data, inputs and targets as in `data`; or a function of the
            model that returns numbers by name. Scores are stored and shown, so these must not be
            the private data. The initial weights are scored before anything is charged.
        averages: averages of weights made for the model; `OutputAverage` for averages of outputs
            and `Snapshots` for averages of any horizon afterwards. None for those of
            `recipes.averages` if the optimizer is chosen by rule too, and for none otherwise.
        run: the run's folder, None for a new one under `runs/`; or `Saving`, which also sets the
            published model and the intervals of checkpoints and evaluations.
        ledger: a ledger, or its file, that several runs on the same data share; None for a ledger
            of this run alone; or `Charging`, which also sets the number of steps charged at a time.
        physical_batch, isolation, source: as for `make_private`. If isolation is only probed, a
            warning, the log and the printed result say so.
        callbacks: called with a `StepInfo` after every step; one that returns True ends the run.
        progress: whether to show a bar.

    Attributes:
        parts: all parts of the run, including the attributes below.
        plan: the plan in use, with its population.
        model, optimizer: in use.
        publish: the full name of the published model.
        folder: the run's files.
        statement: the privacy statement.
        reasons: the reason for each choice by rule, by name.

    Guarantees:
        A step is in the ledger, on the disk, before it begins, and no more steps than the plan has
        are charged. A resumed run draws fresh randomness, continues after everything that was
        charged, and rejects another configuration or other declarations about the data. Files
        contain only what the steps released, scores on the evaluation data, and what was read from
        the records according to the statement (bounds, or a population that was not declared). One
        exception: while a run with correlated noise lasts, its resumable checkpoints contain the
        state of the noise, which is SECRET; see `steppe.noise`. The end of the run removes it. Such
        a run resumes after Ctrl-C or an error; after a crash it is refused unless the newest
        checkpoint has every step that was charged.

    Examples:
        >>> import tempfile, torch, steppe
        >>> data = (torch.randn(200, 4), torch.randint(2, (200,)))
        >>> public = (torch.randn(50, 4), torch.randint(2, (50,)))
        >>> model = nn.Linear(4, 2)
        >>> plan = steppe.Plan(epsilon=3.0, delta=1e-3, population=200, batch_size=40, steps=10)
        >>> trainer = Trainer(
        ...     model, data, plan, evaluate=public, run=tempfile.mkdtemp(), progress=False
        ... )
        >>> trainer.reasons["optimizer"]
        'SGD(lr=..., momentum=0.9), lr·C/(1 − momentum) = ...: more where there is less noise'
        >>> outcome = trainer.fit()
        >>> [row["model"].partition("(")[0] for row in outcome.table], outcome.epsilon <= 3.0
        (['last', 'EMA', 'SWA', 'Window', 'PolynomialDecay'], True)
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any | PrivateData,
        plan: Plan,
        *,
        loss: Callable[..., Tensor] | Objective = F.cross_entropy,
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        evaluate: Any = None,
        averages: Sequence[Keepable] | None = None,
        run: str | Path | Saving | None = None,
        ledger: Ledger | str | Path | Charging | None = None,
        physical_batch: int | None = None,
        isolation: str = "proven",
        source: Source | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        **unknown: Never,
    ) -> None:
        groups.refuse_unknown(unknown)
        arguments.require_kinds(model, plan, optimizer)
        self._unused: Private | None
        self.parts, self._unused = put_together(
            model,
            groups.grouped("data", data),
            plan,
            objective=groups.grouped("loss", loss),
            optimizer=optimizer,
            scheduler=scheduler,
            evaluate=evaluate,
            averages=averages,
            saving=groups.grouped("run", run),
            charging=groups.grouped("ledger", ledger),
            physical_batch=physical_batch,
            isolation=validation.one_of("isolation", isolation, KINDS),
            source=source,
            callbacks=arguments.callbacks(callbacks),
            progress=progress,
        )
        if self.statement.caution is not None:
            warnings.warn(self.statement.caution, PrivacyWarning, stacklevel=2)
        self.parts.rehearse()

    @property
    def plan(self) -> Plan:
        return self.parts.plan

    @property
    def model(self) -> nn.Module:
        return self.parts.model

    @property
    def optimizer(self) -> Optimizer:
        return self.parts.optimizer

    @property
    def publish(self) -> str:
        return self.parts.published

    @property
    def folder(self) -> RunFolder:
        return self.parts.folder

    @property
    def statement(self) -> Statement:
        return self.parts.statement

    @property
    def reasons(self) -> Mapping[str, str]:
        return self.parts.reasons

    def fit(self) -> Outcome:
        """Train from the first step to the last.

        Returns:
            The table of models, the cost, and the folder.

        Raises:
            Interrupted: after Ctrl-C, when the run is saved; `resume` continues it.
        """
        parts, run = self.parts, secrets.token_hex(8)
        with parts.folder.held():
            parts.folder.require_free()
            with opened(parts, run, Anchor()) as open_run:
                # After the ledger, so that a run that it rejects leaves the folder free; before the
                # first charge, so that every run with a charge can be resumed.
                toml = parts.origin.toml
                constants = stored_constants(parts.whole)
                config = parts.config(run)
                parts.folder.begin(parts.plan, open_run.statement, config, toml, constants)
                return self._begin(open_run)

    def resume(self) -> Outcome:
        """Continue the run in this folder from its last checkpoint.

        Steps that were charged after that checkpoint are lost. The run still ends at the plan's
        last step, because their cost cannot be taken back.

        Returns:
            As for `fit`.
        """
        parts = self.parts
        config = parts.folder.read_config()
        fingerprint.require_same(parts.fingerprint, config["settings"])
        with parts.folder.held():
            checkpoint, complaints = resuming.newest(parts.folder, config, parts.ledger)
            anchor = Anchor() if checkpoint is None else checkpoint.anchor
            with opened(parts, config["run"], anchor) as open_run:
                parts.folder.state(open_run.statement)
                if checkpoint is None:
                    return self._begin(open_run)
                return self._go_on(open_run, checkpoint, complaints)

    def _begin(self, open_run: OpenRun) -> Outcome:
        parts = self.parts
        store = parts.open_store(open_run.statement.not_private_reason)
        parts.averages.open(store)
        loop = Loop(parts, open_run, self._fresh_private(), store)
        loop.save()  # before the first charge: from here on every crash can be resumed
        # Choices for a configuration file were printed and are stored in it.
        chosen = {} if parts.origin.toml is not None else parts.reasons
        notes = (f"chosen: {name} = {why}" for name, why in chosen.items())
        return loop.run(notes, shown=self._beside(parts.ledger.runs()))

    def _go_on(
        self, open_run: OpenRun, checkpoint: Checkpoint, complaints: tuple[str, ...]
    ) -> Outcome:
        parts, charged = self.parts, open_run.account.charged
        lost = resuming.lost_after(checkpoint, charged)
        resuming.require_noise(checkpoint.state["private"], lost)
        reason = open_run.statement.not_private_reason
        store, damage = resuming.rewound(
            lambda: parts.open_store(reason), parts.folder, checkpoint.step
        )
        resuming.restore(
            checkpoint,
            charged,
            parts.model,
            parts.optimizer,
            parts.schedule,
            parts.averages,
            store,
        )
        private = self._fresh_private()
        private.load_state_dict({**checkpoint.state["private"], "steps_done": charged})
        notes = (*complaints, *damage, resuming.note(checkpoint.step, lost))
        loop = Loop(parts, open_run, private, store, checkpoint.seconds, checkpoint.lost + lost)
        return loop.run(notes)

    def ceiling(self) -> dict[str, float]:
        """The scores of the same network, trained on the same records without privacy.

        They show what privacy costs. They are not covered by ε, and no file contains them: keep
        them with the data.
        """
        ceiling, evaluation = self.parts.ceiling, self.parts.evaluation
        if ceiling is None or evaluation is None:
            rule = "is not in the privacy statement of this run"
            remedy = "make the trainer with data=PrivateData(records=…, ceiling=True)"
            raise validation.fail("ceiling", False, rule, remedy)
        return ceiling.scores(evaluation)

    def look_around(self) -> list[str]:
        """What the loop will say before the first step: the named ledger and its number of runs;
        and runs on the same data, in folders beside this run's, that its ledger does not have."""
        known = self.parts.ledger.runs() if self.parts.ledger_is_named else {}
        named = named_ledger(self.parts, known, "")
        return ([ledger_line(**named)] if named else []) + self._beside(known)

    def _beside(self, known: Mapping[str, LedgerRun]) -> list[str]:
        parts = self.parts
        found = runs_beside(parts.folder.path, parts.fingerprint["data"], known)
        return [f"note: {note(found)}"] if found else []

    def _fresh_private(self) -> Private:
        """A private object that has drawn nothing yet."""
        private, self._unused = self._unused or self.parts.make_private(), None
        return private
