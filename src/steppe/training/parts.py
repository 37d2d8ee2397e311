"""The parts of a run, made from a trainer's arguments and checked before any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from steppe.accounting import Statement
from steppe.averaging import CheckpointStore, Keep
from steppe.ledger import Ledger
from steppe.plan import Plan
from steppe.private import Private, make_private
from steppe.randomness import Source
from steppe.records import as_records, check_for_owner
from steppe.starts import starts_of
from steppe.training import fingerprint, publishing
from steppe.training.arguments import several
from steppe.training.callbacks import Callback
from steppe.training.chosen import choose
from steppe.training.comparison import Ceiling
from steppe.training.evaluation import Evaluation, refuse_training_data
from steppe.training.folder import RunFolder
from steppe.training.groups import Charging, Objective, Origin, PrivateData, Saving
from steppe.training.intervals import StepIntervals, intervals_of
from steppe.training.losses import of_numbers, why_no_outputs
from steppe.training.lr_schedule import LRSchedule
from steppe.training.public_steps import PublicSteps, public_for_clip, public_steps_of
from steppe.training.run_averages import Keepable, RunAverages, stored_steps
from steppe.utils import validation

_FORMAT = 1


@dataclass(frozen=True)
class RunParts:
    """The parts of a run, before its ledger is opened.

    Args:
        plan: with its population.
        model: to train.
        optimizer: over the model's trainable weights.
        schedule: of the learning rate.
        averages: kept beside the last weights.
        published: the full name of the published model.
        evaluation: scores models; None without evaluation data.
        intervals: the number of steps between evaluations, checkpoints and charges.
        keep: which stored checkpoints are kept.
        folder: the run's files.
        ledger: records the cost.
        ledger_is_named: whether the ledger was given as an argument.
        fingerprint: the configuration, which a resumed run must share.
        statement: the privacy statement for this part of the run.
        origin: the configuration file of the run.
        reasons: the reason for each constant that was chosen by rule, by name.
        callbacks: called after every step.
        progress: whether to show a bar.
        public_steps: taken between private steps; None for none.
        make_private: makes a new `Private`, which has drawn nothing yet.
        ceiling: trains the network without privacy, to compare; None if that was not asked for.
    """

    plan: Plan
    model: nn.Module
    optimizer: Optimizer
    schedule: LRSchedule
    averages: RunAverages
    published: str
    evaluation: Evaluation | None
    intervals: StepIntervals
    keep: Keep | None
    folder: RunFolder
    ledger: Ledger
    ledger_is_named: bool
    fingerprint: Mapping[str, Any]
    statement: Statement
    origin: Origin
    reasons: Mapping[str, str]
    callbacks: Sequence[Callback]
    progress: bool
    public_steps: PublicSteps | None
    make_private: Callable[[], Private]
    ceiling: Ceiling | None

    @property
    def whole(self) -> nn.Module:
        """The model of which the run trains a part, or all."""
        return self.model if self.origin.whole is None else self.origin.whole

    def rehearse(self) -> None:
        """Try what is called between steps, so that it does not fail after steps are charged."""
        self.schedule.rehearse(self.plan.total_steps)
        if self.evaluation is not None:
            scores = self.evaluation.rehearse(self.model)
            self.schedule.require_loss(scores)
            if self.evaluation.has_targets:
                self.averages.require_classes(scores)

    def open_store(self, not_private_reason: str | None) -> CheckpointStore | None:
        """The run's store of checkpoints, if it has one."""
        if self.intervals.store is None:
            return None
        digest = self.plan.digest()
        return CheckpointStore(self.folder.store, digest, self.keep, not_private_reason)

    def config(self, run: str) -> dict[str, Any]:
        """The content of `config.json`.

        Args:
            run: the run's id in the ledger.
        """
        return {
            "format": _FORMAT,
            "run": run,
            "digest": fingerprint.digest(self.fingerprint),
            "settings": self.fingerprint,
            "reasons": self.reasons,
            "python_only": self.origin.python_only,
            "options": {
                "checkpoint_every": self.intervals.checkpoint,
                "evaluate_every": self.intervals.evaluation,
                "block": self.intervals.block,
            },
        }


def put_together(
    model: nn.Module,
    data: PrivateData,
    plan: Plan,
    *,
    objective: Objective,
    optimizer: Optimizer | None,
    scheduler: LRScheduler | None,
    evaluate: Any,
    averages: Sequence[Keepable] | None,
    saving: Saving,
    charging: Charging,
    isolation: str,
    physical_batch: int | None,
    source: Source | None,
    callbacks: Sequence[Callback],
    progress: bool,
) -> tuple[RunParts, Private]:
    """Check all arguments of a trainer, and make the parts of its run.

    Returns:
        The parts, and the first `Private`, which was made to check the model.
    """
    rows = as_records(data.records)
    chosen = choose(
        model,
        plan,
        rows,
        objective,
        optimizer=optimizer,
        scheduler=scheduler,
        averages=averages,
        publish=saving.publish,
    )
    public_steps = public_steps_of(objective, data, chosen.optimizer)
    folder = RunFolder(saving.folder)
    evaluation = None
    if evaluate is not None:
        evaluation = Evaluation(evaluate, objective.loss, objective.function)
        refuse_training_data(data.records, evaluate)
    if data.ceiling and (evaluation is None or not evaluation.has_targets):
        rule = "needs held-out records with targets, to be scored on"
        remedy = "keep some out (--holdout 0.2), or give evaluate="
        raise validation.fail("ceiling", True, rule, remedy)
    schedule = LRSchedule(
        scheduler, chosen.optimizer, evaluation is not None, data.held_out is not None
    )
    make = partial(
        make_private,
        model,
        chosen.optimizer,
        rows,
        plan,
        loss=objective.loss,
        objective=objective.function,
        augment=objective.augment,
        groups=data.groups,
        public=public_for_clip(plan, data, public_steps),
        physical_batch=physical_batch,
        classes=data.classes,
        source=source,
        isolation=isolation,
    )
    declared = plan.population if plan.population_source == "declared" else None
    first = make()
    plan = first.plan
    also_read = tuple(dict.fromkeys((*rows.also_read, *data.also_read)))
    numbers = of_numbers(objective.loss)
    checked = check_for_owner(rows, declared, data.columns, numbers) if data.checks else None
    statement = replace(
        first.statement(),
        also_read=also_read,
        held_out=data.held_out,
        checked=checked,
        compared=data.ceiling,
        public_steps=public_steps is not None,
    )
    intervals = intervals_of(saving, charging.block, plan.total_steps)
    kept = RunAverages(
        model,
        several("averages", () if chosen.averages is None else chosen.averages),
        plan.total_steps,
        stored_steps(intervals.store, plan.total_steps, saving.keep),
        why_no_outputs(objective.loss, rows),
    )
    published = publishing.find(chosen.publish, kept.of_weights)
    shared = folder.ledger if charging.ledger is None else charging.ledger
    ledger = shared if isinstance(shared, Ledger) else Ledger(shared)
    parts = RunParts(
        plan=plan,
        model=model,
        optimizer=chosen.optimizer,
        schedule=schedule,
        averages=kept,
        published=published,
        evaluation=evaluation,
        intervals=intervals,
        keep=saving.keep,
        folder=folder,
        ledger=ledger,
        ledger_is_named=charging.ledger is not None,
        fingerprint={
            "plan": {**plan.to_dict(), "digest": plan.digest()},
            "data": fingerprint.of_data(data.name, plan.population, rows),
            "model": fingerprint.of_model(model),
            "front_end": fingerprint.of_front_end(saving.origin.whole),
            **fingerprint.of_objective(objective),
            "isolation": isolation,
            "optimizer": fingerprint.of_optimizer(chosen.optimizer),
            "scheduler": fingerprint.of_scheduler(scheduler),
            "averages": kept.labels,
            "publish": published,
            "store_every": intervals.store,
            "ledger": None if charging.ledger is None else ledger.path.resolve().name,
            "also_read": list(also_read),  # a resumed run keeps this note
            "public_records": statement.public_records,
            "public_steps": None
            if public_steps is None
            else [objective.public_batch, objective.public_every],
            "starts": [sha for _, sha in starts_of(model)],
            "inputs": saving.origin.inputs,
        },
        statement=statement,
        origin=saving.origin,
        reasons={**saving.origin.reasons, **chosen.reasons},
        callbacks=callbacks,
        progress=progress,
        public_steps=public_steps,
        make_private=make,
        ceiling=Ceiling(model, rows, objective.loss) if data.ceiling else None,
    )
    return parts, first
