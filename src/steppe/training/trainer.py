"""The trainer: a private run from its first step to its table, safe against crashes."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from steppe.averaging import CheckpointStore, Keep
from steppe.errors import PrivacyWarning
from steppe.ledger import Account, Anchor, Ledger, LedgerRun
from steppe.plan import Plan
from steppe.private import Private, make_private
from steppe.randomness import Source
from steppe.records import as_records
from steppe.training import fingerprint, parts, publishing, recipes, resuming
from steppe.training.callbacks import Callback
from steppe.training.evaluation import Evaluation, refuse_training_data
from steppe.training.folder import RunFolder
from steppe.training.ledger_summary import as_before, runs_before, standing
from steppe.training.loop import Loop
from steppe.training.losses import curvature, why_no_outputs
from steppe.training.lr_schedule import LRSchedule
from steppe.training.outcome import Outcome
from steppe.training.run_averages import Keepable, RunAverages, stored_steps
from steppe.utils import validation

_FORMAT = 1


class Trainer:
    """Trains a model privately and keeps the account, the checkpoints and the results of it.

    Args:
        model, data, plan: as for `make_private`.
        loss, objective, augment, groups, public, physical_batch, classes, source, isolation: as for
            `make_private`. Where isolation is only probed, a warning, the log and the end of the
            run say so.
        optimizer: any torch optimizer over the model's trainable weights; None for SGD at the rate
            that `recipes.optimizer_for` gives for this model and plan.
        scheduler: any torch scheduler over that optimizer, stepped once a step.
        run: the run's folder; None makes a new one under `runs/`.
        evaluate: public or held-out data, inputs and targets as in `data`; or a function of the
            model that returns numbers by name. Scores are written down and shown, so these must not
            be the private data. The first weights are scored before anything is charged.
        averages: averages of weights made for the model; `FromStore` for averages of outputs and
            `Snapshots` for horizons to choose afterwards. None for those of `recipes.averages`
            where the optimizer is chosen by rule too, and for none elsewhere.
        publish: the model to use, in `published.safetensors`: "last", or an average of weights by
            as much of its name as tells it from the others, such as "EMA". None for the EMA where
            the averages are those of `recipes.averages`, and for the last weights elsewhere.
        store_every: steps from one stored checkpoint to the next; None stores none.
        keep: which stored checkpoints stay; None for all.
        checkpoint_every: steps from one resumable checkpoint to the next; a twentieth of the plan.
        evaluate_every: steps from one evaluation to the next; a tenth of the plan.
        ledger: a ledger, or its file, that several runs on the same data share; None for one of
            this run's own.
        block: steps that are charged to the ledger at a time.
        data_name: what the data are called in the ledger.
        also_read: what was read from the private records before, such as the range of a column, in
            words that the privacy statement repeats, after what `data.also_read` says.
        callbacks: called with a `Moment` after every step; one that returns True ends the run.
        progress: whether to show a bar.

    Attributes:
        plan: the plan in use, with its population.
        publish: the full name of the model to use.
        folder: the run's files.
        named_ledger: `path` of a ledger that was named, and how many runs were charged `before`
            this one; empty where the run has a ledger of its own.
        toml: the configuration file that `resume` is to find in the folder, or None.
        keys: that file's names for what a ledger refuses, by the plan's and the trainer's own.
        reasons: why what was chosen by rule is what it is, by its name.

    Guarantees:
        A step is in the ledger, on the disk, before it begins, and never more steps than the plan
        has. A run that is taken up again draws fresh randomness, goes on after everything that was
        charged, and refuses another configuration or data declared otherwise. Files hold what the
        steps released and scores on the data that were given for it, and what was read off the
        records where the statement says so (bounds, or a population that was not declared),
        nothing else.

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
        data: Any,
        plan: Plan,
        *,
        loss: Callable[..., Tensor] | None = F.cross_entropy,
        objective: Callable[[nn.Module, Any], Tensor] | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        groups: Sequence[Any] | None = None,
        public: Any = None,
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        run: str | Path | None = None,
        evaluate: Any = None,
        averages: Sequence[Keepable] | None = None,
        publish: str | None = None,
        store_every: int | None = None,
        keep: Keep | None = None,
        checkpoint_every: int | None = None,
        evaluate_every: int | None = None,
        ledger: Ledger | str | Path | None = None,
        block: int | None = None,
        data_name: str = "data",
        also_read: str | Sequence[str] = (),
        physical_batch: int | None = None,
        classes: int | None = None,
        source: Source | None = None,
        isolation: str = "proven",
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        parts.require_parts(model, plan, optimizer)
        parts.isolation("isolation", isolation)
        loss = None if objective is not None else loss
        rows = as_records(data)
        self.reasons: dict[str, str] = {}
        self.callbacks = parts.callbacks(callbacks)
        parts.text("data_name", data_name)
        if optimizer is None:
            if scheduler is not None:
                remedy = "pass that optimizer too, as optimizer="
                raise validation.fail("scheduler", scheduler, "belongs to an optimizer", remedy)
            known = plan if plan.population else plan.for_population(len(rows))
            bend = curvature(loss, model, rows)
            optimizer, self.reasons["optimizer"] = recipes.optimizer_for(model, known, bend)
            if averages is None:
                averages = recipes.averages(model, known.total_steps)
                self.reasons["averages"] = f"EMA, SWA, UPA, PDA, {recipes.FREE}"
                if publish is None:
                    publish = recipes.PUBLISHED.__name__
                    self.reasons["publish"] = f"{publish}, {recipes.BEFOREHAND}"
        self.folder = RunFolder(run)
        self.evaluation = None if evaluate is None else Evaluation(evaluate, loss, objective)
        refuse_training_data(data, evaluate)
        self.schedule = LRSchedule(scheduler, optimizer, self.evaluation is not None)
        before = fingerprint.of_optimizer(optimizer), fingerprint.of_scheduler(scheduler)

        def private() -> Private:
            return make_private(
                model,
                optimizer,
                rows,
                plan,
                loss=loss,
                objective=objective,
                augment=augment,
                groups=groups,
                public=public,
                physical_batch=physical_batch,
                classes=classes,
                source=source,
                isolation=isolation,
            )

        self._make_private = private
        self._unused: Private | None = private()
        self.plan = plan = self._unused.plan
        said = parts.texts("also_read", also_read)
        also_read = tuple(dict.fromkeys((*rows.also_read, *said)))
        self.statement = replace(self._unused.statement(), also_read=also_read)
        if self.statement.caution is not None:
            warnings.warn(self.statement.caution, PrivacyWarning, stacklevel=2)
        steps = plan.total_steps
        self.checkpoint_every = parts.checkpoint_every(checkpoint_every, steps)
        self.evaluate_every = parts.evaluate_every(evaluate_every, steps)
        self.block = parts.block(block, self.checkpoint_every)
        self.store_every = store_every = parts.store_every(store_every, steps)
        self._keep = parts.keep(keep, store_every)
        self.model, self.optimizer = model, optimizer
        kept = parts.several("averages", () if averages is None else averages)
        stored = stored_steps(store_every, steps, self._keep)
        self.kept = RunAverages(model, kept, steps, stored, why_no_outputs(loss, rows))
        self.publish = publishing.find(publish, self.kept.of_weights)
        self.progress = progress
        self.toml: str | None = None
        self.keys: Mapping[str, str] = {}
        shared = self.folder.ledger if ledger is None else ledger
        self.ledger = shared if isinstance(shared, Ledger) else Ledger(shared)
        self._ledger_is_named = ledger is not None
        self.named_ledger: dict[str, Any] = {}
        self.data = fingerprint.of_data(data_name, plan.population, rows)
        self.settings: dict[str, Any] = {
            "plan": {**plan.to_dict(), "digest": plan.digest()},
            "data": self.data,
            "model": fingerprint.of_model(model),
            "loss": fingerprint.of_function(loss),
            "objective": fingerprint.of_function(objective),
            "augment": fingerprint.of_function(augment),
            "optimizer": before[0],
            "scheduler": before[1],
            "averages": self.kept.labels,
            "store_every": store_every,
            "ledger": None if ledger is None else self.ledger.path.resolve().name,
        }
        if self.publish != publishing.LAST:
            self.settings["publish"] = self.publish
        if isolation != parts.LEVELS[0]:
            self.settings["isolation"] = isolation
        if also_read:  # a resumed run must not forget what the first part of it read
            self.settings["also_read"] = list(also_read)
        if self.statement.public_records:
            self.settings["public_records"] = self.statement.public_records
        self._rehearse()

    def fit(self) -> Outcome:
        """Train from the first step to the last.

        Returns:
            The table of models, the cost, and the folder with everything.

        Raises:
            Interrupted: after Ctrl-C, once the run is saved; `resume` goes on.
        """
        run = secrets.token_hex(8)
        with self.folder.held():
            self.folder.require_free()
            with self._account(run, Anchor()) as account:
                # After the ledger, so that a run it refuses leaves the folder free; before the
                # first charge, so that every charge has what it takes to go on.
                self.folder.begin(self.plan, self.statement, self._config(run), self.toml)
                return self._begin(account)

    def resume(self) -> Outcome:
        """Go on with the run in this folder, from its last checkpoint.

        Steps that were charged and did not reach that checkpoint are lost: the run ends at the
        plan's last step all the same, since their cost cannot be taken back.

        Returns:
            As for `fit`.
        """
        config = self.folder.read_config()
        was = config["settings"].get("ledger")
        self.settings["ledger"] = as_before(self.settings["ledger"], was)
        fingerprint.require_same(self.settings, config["settings"])
        with self.folder.held():
            checkpoint, complaints = resuming.newest(self.folder, config, self.ledger)
            anchor = Anchor() if checkpoint is None else checkpoint.anchor
            with self._account(config["run"], anchor) as account:
                if checkpoint is None:
                    return self._begin(account)
                lost = resuming.lost_after(checkpoint, account.charged)
                complaints += resuming.restore(self, checkpoint, account.charged)
                private = self._fresh_private()
                steps_done = {"steps_done": account.charged}
                private.load_state_dict({**checkpoint.state["private"], **steps_done})
                notes = (*complaints, resuming.note(checkpoint.step, lost))
                loop = Loop(self, private, account, checkpoint.seconds, checkpoint.lost + lost)
                return loop.run(notes)

    def _begin(self, account: Account) -> Outcome:
        self.kept.open(self.open_store())
        loop = Loop(self, self._fresh_private(), account, 0.0, 0)
        loop.save()  # before the first charge: from here on every crash can be resumed
        # Who trains from a configuration has its choices in a file, and has seen them.
        chosen = {} if self.toml is not None else self.reasons
        return loop.run(f"chosen: {name} = {why}" for name, why in chosen.items())

    def look_at_ledger(self) -> str | None:
        """Which ledger was named and how many runs it has already; None for one's own."""
        if not self._ledger_is_named:
            return None
        return standing(**self._named(self.ledger.runs(), ""))

    def _named(self, known: Mapping[str, LedgerRun], run: str) -> dict[str, Any]:
        path = str(self.ledger.path.resolve())
        return {"path": path, "before": runs_before(known, run)}

    def _rehearse(self) -> None:
        """Try what is called between steps, so that it cannot fail when steps are charged."""
        self.schedule.rehearse(self.plan.total_steps)
        if self.evaluation is not None:
            scores = self.evaluation.rehearse(self.model)
            self.schedule.require_loss(scores)
            if self.evaluation.has_targets:
                self.kept.require_classes(scores)

    def _account(self, run: str, anchor: Anchor) -> Account:
        """The run's hold on the ledger, which it enters only once."""
        with validation.called(self.keys):
            return self._opened(run, anchor)

    def _opened(self, run: str, anchor: Anchor) -> Account:
        reason = self.statement.not_private_reason
        plan, data, block = self.plan, self.data, self.block
        known = self.ledger.runs()
        if self._ledger_is_named:
            self.named_ledger = self._named(known, run)
        if not (run in known or anchor.length):
            return self.ledger.begin(plan, data, block=block, run=run, not_private_reason=reason)
        account = self.ledger.resume(
            run, plan, data, block=block, anchor=anchor, not_private_reason=reason
        )
        self.statement = replace(self.statement, not_private_reason=account.run.not_private_reason)
        self.folder.state(self.statement)
        return account

    def _fresh_private(self) -> Private:
        """A private object that has drawn nothing yet."""
        private, self._unused = self._unused or self._make_private(), None
        return private

    def _config(self, run: str) -> dict[str, Any]:
        """What `config.json` says."""
        return {
            "format": _FORMAT,
            "run": run,
            "digest": fingerprint.digest(self.settings),
            "settings": self.settings,
            "reasons": self.reasons,
            "of_python": self.folder.of_python,
            "options": {
                "checkpoint_every": self.checkpoint_every,
                "evaluate_every": self.evaluate_every,
                "block": self.block,
            },
        }

    def open_store(self) -> CheckpointStore | None:
        """The run's store of checkpoints, if it has one."""
        if self.store_every is None:
            return None
        reason = self.statement.not_private_reason
        return CheckpointStore(self.folder.store, self.plan.digest(), self._keep, reason)
