"""The `Trainer` of transformers, private."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer as PlainTrainer
from transformers import TrainerCallback

from steppe.accounting import Statement
from steppe.errors import MisuseError
from steppe.integrations.privacy_card import write_card, write_statement
from steppe.integrations.record_losses import LABELS, record_losses
from steppe.integrations.resume_state import ResumeState, read_state, write_state
from steppe.integrations.stepping import DrawnBatches, StepsPrivately
from steppe.integrations.training_arguments import (
    check_arguments,
    plan_of,
    steps_in_pass,
)
from steppe.ledger import Account, Ledger, pause_quietly
from steppe.private import Private, make_private
from steppe.randomness import Source
from steppe.records import as_records, share_records
from steppe.utils import validation

# Values that the loop writes down and that are made from private records without noise.
_NOT_RELEASED = ("loss", "train_loss", "grad_norm", "total_flos")
_LONGEST_BLOCK = 50


class PrivateTrainer(PlainTrainer):  # type: ignore[misc]
    """The `Trainer` of transformers, with private steps.

    Args:
        plan: the fields of `steppe.Plan` that `TrainingArguments` do not decide: `epsilon` or
            `noise_multiplier`, `delta`, and if needed `population`, `clip`, `point`, `noise`, `l2`
            and others. The batch is `per_device_train_batch_size × gradient_accumulation_steps`,
            and `max_grad_norm` is C, the bound of each record's gradient.
        ledger: of all runs on this data; None for one in `output_dir`.
        data_name: of the data in the ledger.
        isolation: as for `steppe.make_private`.
        source: as for `steppe.make_private`.
        arguments: those of `Trainer`. `compute_loss_func(outputs, labels, num_items_in_batch=None)`
            must return one loss for each record.

    Guarantees:
        Every update is one private step of `make_private` on a Poisson batch of the logical size;
        `gradient_accumulation_steps` parts of it pass through the model one after the other, and
        empty batches are stepped. A step is charged to the ledger before its records are read, and
        training stops when the plan's steps are used up. Arguments that would make ε wrong are
        refused by name before anything is spent. The training loss, the gradient's norm and counts
        of tokens are not released. Scores on `eval_dataset` are outside of ε.
    """

    def __init__(
        self,
        *positional: Any,
        plan: Mapping[str, Any],
        ledger: str | Path | Ledger | None = None,
        data_name: str = "train_dataset",
        isolation: str = "proven",
        source: Source | None = None,
        **arguments: Any,
    ) -> None:
        given = arguments.get("args", positional[1] if len(positional) > 1 else None)
        if given is not None:
            check_arguments(given)
        super().__init__(*positional, **arguments)
        if type(self).compute_loss is not PlainTrainer.compute_loss:
            rule = "is not called, because its mean over a batch mixes records"
            remedy = "override record_losses(model, batch), one loss for each record"
            raise validation.fail("compute_loss", "overridden", rule, remedy)
        self._private: Private | None = None
        self._account: Account | None = None
        self._parts: list[Any] = []
        self._resumed: ResumeState | None = None
        self._isolation, self._source, self._data_name = isolation, source, data_name
        own = Path(self.args.output_dir) / "ledger.jsonl"
        self._owns_ledger = ledger is None
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger or own)
        self._records = as_records(self._loader())
        if self.eval_dataset is not None:
            self._refuse_private_evaluation(self.eval_dataset)
        self.plan = plan_of(self.args, plan, len(self._records))
        self.add_callback(_StopAtBudget(self))

    def record_losses(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """One loss for each record of a batch; override it for a model or loss of your own."""
        if self.compute_loss_func is None:
            return record_losses(model, batch)
        inputs = {name: value for name, value in batch.items() if name != LABELS}
        losses: Tensor = self.compute_loss_func(
            model(**inputs), batch.get(LABELS), num_items_in_batch=None
        )
        return losses

    def epsilon(self) -> float:
        """ε at the plan's δ for the steps taken so far; infinite for seeded noise."""
        return 0.0 if self._private is None else self._private.epsilon()

    def statement(self) -> Statement:
        """The privacy statement of the whole plan."""
        return self.plan.statement() if self._private is None else self._private.statement()

    def train(self, resume_from_checkpoint: Any = None, *positional: Any, **arguments: Any) -> Any:
        """Train; see `Trainer.train`. The training loss of the result is NaN: it is private."""
        from transformers.trainer_utils import TrainOutput, get_last_checkpoint

        found = resume_from_checkpoint or None
        if found is True:
            found = get_last_checkpoint(self.args.output_dir)
            if found is None:
                rule = "contains no checkpoint"
                raise validation.fail("output_dir", self.args.output_dir, rule, "start a new run")
        with self._opened(found):
            result = super().train(found, *positional, **arguments)
        metrics = {name: v for name, v in result.metrics.items() if name not in _NOT_RELEASED}
        return TrainOutput(result.global_step, math.nan, {**metrics, **self._spent()})

    def evaluate(self, eval_dataset: Any = None, *positional: Any, **arguments: Any) -> Any:
        """Score on records that are not trained on; the scores go into log and checkpoints."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            self._refuse_private_evaluation(eval_dataset)
        return super().evaluate(eval_dataset, *positional, **arguments)

    def get_train_dataloader(self) -> Any:
        """The plan's batches; outside of `train()` there are none."""
        in_pass = steps_in_pass(self.args, self.plan.population or len(self._records))
        parts = self.args.gradient_accumulation_steps
        return DrawnBatches(
            self.train_dataset, parts, in_pass, self._require_private, self._require_account
        )

    def create_optimizer(self, *positional: Any, **arguments: Any) -> Any:
        """The optimizer of `Trainer`, which steps privately."""
        optimizer = super().create_optimizer(*positional, **arguments)
        while not isinstance(optimizer, StepsPrivately) and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer  # accelerate has wrapped it in an earlier call
        if isinstance(optimizer, StepsPrivately):
            optimizer = optimizer.inner
        self._begin(optimizer)
        self.optimizer = StepsPrivately(optimizer, self._take)
        return self.optimizer

    def training_step(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Tensor:
        """Keep a part of the drawn batch; the step is taken by `optimizer.step()`.

        Returns:
            Zero, because the loss of private records is not released.
        """
        model.train()
        self._parts.append(self._prepare_inputs(inputs))
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero, because the count shows the size of the batch, which is private."""
        del inputs
        return 0

    def log(self, logs: dict[str, Any], *positional: Any, **arguments: Any) -> None:
        """Log what is public, with the ε spent so far; scores have lines of their own."""
        public = {name: value for name, value in logs.items() if name not in _NOT_RELEASED}
        is_score = any(name.startswith("eval_") for name in logs)
        spent = {} if is_score else self._spent()
        super().log({**public, **spent}, *positional, **arguments)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, or the adapter alone, with the privacy statement and a model card."""
        folder = Path(output_dir or self.args.output_dir)
        super().save_model(str(folder), _internal_call=_internal_call)
        write_statement(folder, self.statement())
        if not _internal_call:
            self._write_card(folder)
        elif self._private is not None and self._account is not None:
            step, history = self.state.global_step, self.state.log_history
            if not any(line["step"] == step and "epsilon" in line for line in history[-2:]):
                history.append({**self._spent(), "epoch": self.state.epoch, "step": step})
            write_state(folder, self._private, self._account)

    def create_model_card(self, *positional: Any, **arguments: Any) -> None:
        """Write the model card of `Trainer`, with the privacy statement."""
        super().create_model_card(*positional, **arguments)
        self._write_card(Path(self.args.output_dir))

    def hyperparameter_search(self, *positional: Any, **arguments: Any) -> Any:
        """Refused: every trial is a run on the private data, and ε of one would be printed."""
        raise MisuseError.about(
            "hyperparameter_search",
            "private run",
            "would train many times on the same records, and ε is that of one run",
            "search on public data, or run each trial with one ledger= for all",
        )

    @contextmanager
    def _opened(self, checkpoint: str | None) -> Iterator[None]:
        """Lock the ledger and begin or resume a run in it; return unused steps at the end."""
        data = {"name": self._data_name, "population": self.plan.population}
        reason = None if self._source is None else self._source.not_private_reason
        options: dict[str, Any] = {
            "block": max(1, min(_LONGEST_BLOCK, self.plan.total_steps // 20)),
            "not_private_reason": reason,
        }
        self._resumed = None if checkpoint is None else read_state(Path(checkpoint), self.plan)
        if (known := self._resumed) is not None:
            run, anchor = known.run, known.anchor
            account = self.ledger.resume(run, self.plan, data, anchor=anchor, **options)
        else:
            if self._owns_ledger and self.ledger.runs():
                raise MisuseError.about(
                    "output_dir",
                    self.args.output_dir,
                    "contains a private run already",
                    "resume it with train(resume_from_checkpoint=True), name another folder, or "
                    "give ledger= to add both runs up",
                )
            account = self.ledger.begin(self.plan, data, **options)
        skips, self.args.ignore_data_skip = self.args.ignore_data_skip, True
        with account:
            self._account, self._private, self._parts = account, None, []
            before = account.charged
            try:
                yield
            finally:
                self.args.ignore_data_skip = skips
                begun = 0 if self._private is None else self._private.steps_done
                pause_quietly(account, max(before, begun))
                self._account = None

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Check model, optimizer and data, and make the object that takes the private steps."""
        account = self._require_account()
        self.model.train()
        self._private = make_private(
            self.model,
            optimizer,
            self._records,
            self.plan,
            objective=self.record_losses,
            isolation=self._isolation,
            source=self._source,
        )
        if self._resumed is not None:
            charged = max(account.charged, self._resumed.state["steps_done"])
            self._private.load_state_dict({**self._resumed.state, "steps_done": charged})

    def _take(self) -> None:
        """Take the private step of the parts that the loop has kept."""
        private = self._require_private()
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            private.step(parts[0])
            return
        for part in parts:
            private.accumulate(part)
        private.step()

    def _loader(self) -> DataLoader[Any]:
        """The data set with the collator and the workers of `Trainer`; its order is not used."""
        plain = super().get_train_dataloader()
        return DataLoader(
            plain.dataset,
            collate_fn=plain.collate_fn,
            num_workers=plain.num_workers,
            prefetch_factor=plain.prefetch_factor,
            multiprocessing_context=plain.multiprocessing_context,
            pin_memory=plain.pin_memory and self.args.device.type != "cpu",
        )

    def _refuse_private_evaluation(self, given: Any) -> None:
        for one in given.values() if isinstance(given, dict) else (given,):
            if one is self.train_dataset or share_records(self._records, one):
                rule = "are the private records, and scores on them are outside of ε"
                raise validation.fail(
                    "eval_dataset", type(one).__name__, rule, "give records that are not trained on"
                )

    def _write_card(self, folder: Path) -> None:
        charged = 0 if self._private is None else self._private.steps_done
        write_card(folder, type(self.model).__name__, self.statement(), charged)

    def _spent(self) -> dict[str, Any]:
        """ε and δ for logs; ε is None for a run that is not private."""
        epsilon = self.epsilon()
        return {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": self.plan.delta}

    def _require_private(self) -> Private:
        if self._private is None:
            raise _outside("the batches of a private run")
        return self._private

    def _require_account(self) -> Account:
        if self._account is None:
            raise _outside("the optimizer of a private run")
        return self._account


class _StopAtBudget(TrainerCallback):  # type: ignore[misc]
    """Ends training when the plan's steps are used up, taken or lost."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Called by the loop."""
        private = self._trainer._private
        if private is not None and private.steps_done >= private.plan.total_steps:
            control.should_training_stop = True
        return control


def _outside(what: str) -> MisuseError:
    return MisuseError.about(
        "train()", "not running", f"makes {what}", "call trainer.train() instead"
    )
