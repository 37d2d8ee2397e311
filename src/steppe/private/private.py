"""The object that takes the steps of a private loop."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.accounting import Statement
from steppe.clipping import ClippedSum
from steppe.errors import MisuseError
from steppe.mechanism import Mechanism
from steppe.plan import Plan
from steppe.private.batch_reader import BatchReader
from steppe.private.dropped_records import DroppedRecords
from steppe.private.epochs import left_in_epoch
from steppe.private.foreign_steps import ForeignSteps
from steppe.private.public_step import refuse_noise_aware, take_public_step
from steppe.private.setup_checks import (
    name_unmoved,
    refuse_drawn_as_public,
    refuse_private_as_public,
)
from steppe.private.step_checks import (
    refuse_coarse_products,
    refuse_modes,
    require_movement,
    require_untouched,
    require_whole,
)
from steppe.probing import LOOK_AGAIN, ProbeCache, Report
from steppe.randomness import Source
from steppe.records import Records
from steppe.sampling import Draw
from steppe.starts import starts_of
from steppe.step import PrivateStep
from steppe.utils import validation
from steppe.utils.batches import count, each
from steppe.utils.user_code import level


class Private:
    """Draws batches, takes private steps and computes their cost. Made by `make_private`.

    Attributes:
        model, optimizer: yours, unchanged.
        plan: the public constants in use.
        engine: the clipped sum.
        groups: the rows of each group of records, if the sampler needs groups.
        padding_rows: the padding row of each embedding table that has one, by name.

    Guarantees:
        Every drawn batch must be stepped exactly once, also an empty one. No step is taken after
        the plan's last one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        records: Records,
        plan: Plan,
        engine: ClippedSum,
        source: Source,
        groups: Sequence[Any] | None = None,
        isolation: str = "proven",
    ) -> None:
        self.model, self.optimizer, self.engine = model, optimizer, engine
        self.groups = groups
        self._not_private_reason = source.not_private_reason
        in_a_step = plan.padded_to or plan.batch_size
        self._example = example_for(engine, records)
        self._probes = ProbeCache(model, engine, in_a_step, isolation)
        self._parts: list[Any] = []
        self._public_steps = False
        # The step of the last batch that was yielded, and the number of its records.
        self._handed_out = (-1, 0)
        self._last_batch: Any = None  # kept to know it again where public records are given
        found = self._probes.expect([self._example])
        refuse_coarse_products(engine)  # of layers that the probe has found
        name_unmoved(found.unused, found.detached, begun=bool(starts_of(model)))
        engine.rehearse()
        self.padding_rows = self._probes.padding_rows(found)
        self._step = PrivateStep(plan, engine, optimizer, source, self.padding_rows)
        self._records = records
        draw = draw_of(plan, len(records), groups)
        self._reader = BatchReader(draw, records, source, plan.total_steps)
        self._foreign_steps = ForeignSteps(engine.parameters)
        self._exhaustion_said = False
        self._taken = 0  # steps of this object, which may have begun in the middle of a run
        self._dropped: DroppedRecords | None = DroppedRecords()
        self._step.mechanism.on_norms = self._dropped.see
        self._lock = threading.RLock()  # reentrant: a step inside a step is an error, no deadlock

    @property
    def plan(self) -> Plan:
        """The public constants. They cannot be replaced."""
        return self._step.plan

    @property
    def mechanism(self) -> Mechanism:
        """Makes the private gradients."""
        return self._step.mechanism

    def __iter__(self) -> Iterator[Any]:
        """The remaining batches, one for each step of the plan.

        If an earlier loop ended between a draw and its step, the new loop begins with the same
        draw. If no batch is left, a warning says so, once.
        """
        if not len(self):
            self._say_exhausted()
        new = True
        while self.steps_done < self.plan.total_steps:
            self._foreign_steps.require_alone()
            if self._drawn is not None and not new:
                raise MisuseError(
                    f"step={self.steps_done + 1}: a batch was drawn and not stepped; step every "
                    "batch, also an empty one, because leaving some out changes the mechanism."
                )
            new, step = False, self.steps_done
            batch = self._reader.read(step)
            self._handed_out, self._last_batch = (step, count(batch)), batch
            yield batch
        self._foreign_steps.require_alone()

    @property
    def _drawn(self) -> int | None:
        """The number of records in the batch that was yielded for the next step, if any."""
        step, size = self._handed_out
        return size if step == self.steps_done else None

    def __len__(self) -> int:
        """How many batches are left."""
        return self.plan.total_steps - self.steps_done

    def batches(self, steps: int) -> Iterator[Any]:
        """The next `steps` batches: an epoch, say, with an evaluation after it."""
        return itertools.islice(iter(self), validation.positive_integer("steps", steps))

    def epoch(self) -> Iterator[Any]:
        """The batches up to the end of the current epoch, for loops over epochs.

        An epoch is population / batch_size steps, in which a record takes part once on average. A
        plan of n epochs has n of them; if that is not a whole number, the last one is shorter. With
        `FixedOrder` an epoch is one of its own: every record takes part once.

        Examples:
            >>> import torch
            >>> from steppe import Plan, make_private
            >>> plan = Plan(epsilon=3.0, delta=1e-3, population=100, batch_size=40, epochs=2)
            >>> model, data = nn.Linear(4, 2), (torch.randn(100, 4), torch.randint(2, (100,)))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> loss = nn.functional.cross_entropy
            >>> private = make_private(model, optimizer, data, plan, loss=loss)
            >>> for epoch in range(2):
            ...     for batch in private.epoch():
            ...         private.step(batch)
            ...     print(epoch, private.steps_done, len(private))
            0 2 3
            1 5 0
        """
        steps = (self.plan.population or len(self._records)) / self.plan.batch_size
        if (turns := self.plan.turns) is not None and turns.exact:
            steps = turns.separation
        return itertools.islice(iter(self), left_in_epoch(self.steps_done, steps))

    def _say_exhausted(self) -> None:
        if not self._exhaustion_said:
            self._exhaustion_said = True
            warnings.warn(
                f"no batch is left: all {self.plan.total_steps} steps of the plan are taken. More "
                "steps need a plan with more steps or epochs, made before training.",
                UserWarning,
                stacklevel=level(),
            )

    def accumulate(self, part: Any) -> None:
        """Store a part of the drawn batch; `step()` without a batch then uses all parts.

        Together the parts must contain every drawn record once. Only their number is checked. With
        fixed shapes this is an error, because the number of parts would reveal the batch size.
        """
        require_whole(self.plan, "part", part)
        count(part)  # an error if this is not a batch
        self._parts.append(part)

    def step(self, batch: Any = None) -> None:
        """Take one private step.

        Args:
            batch: the batch that was drawn, possibly moved to a device or transformed record by
                record; None after `accumulate`.
        """
        with self._lock:  # of two threads with one batch, the second gets an error
            self._take(batch)

    def _take(self, batch: Any) -> None:
        if self.steps_done >= self.plan.total_steps:
            self._step.take(())  # raises BudgetExhausted
        self._foreign_steps.require_alone()
        if batch is None:
            require_whole(self.plan, "batch", None)
        parts = self._parts if batch is None else [*self._parts, batch]
        found = sum(count(part) for part in parts)
        if self._drawn is None or found != self._drawn:
            # After a wrong batch or too many parts, the parts are given again.
            if batch is not None or found > (self._drawn or 0):
                self._parts = []
            raise MisuseError(
                "batch=more or fewer records: must be the batch just drawn, each record once; "
                "iterate over the private object and pass on what it yields."
            )
        refuse_modes(self.engine)
        self._probes.expect(parts or [self._example])
        done = self.steps_done
        # For torch's own code, every step compares all that could change.
        if done in LOOK_AGAIN and self.engine.runs_users_code:
            self._probes.look_again()
        before = self._snapshot() if done == 0 else {}
        try:
            self._step.take(parts)
        finally:
            self._foreign_steps.note()
            if self.steps_done > done:  # charged, so the batch is used up
                self._parts = []
        self._taken += 1
        if self._dropped is not None and self._dropped.after(self._taken):
            self._dropped = self._step.mechanism.on_norms = None
        require_untouched(self.model)
        require_movement(before, self.engine.parameters, self.optimizer)

    def public_step(self, batch: Any) -> None:
        """Take a plain step on public records, before or after a private one.

        The optimizer is the same, so both share its momentum. The step is not counted, and the
        privacy statement says that there are such steps.

        Args:
            batch: records that need no protection, in the form of a private batch.

        Guarantees:
            No privacy cost, as the weights of every step are released already. Records in the
            memory of the private ones, or of the batch drawn last, are rejected; other copies of
            them are not detected.
        """
        with self._lock:
            self._foreign_steps.require_alone()
            refuse_noise_aware(self.optimizer)
            refuse_private_as_public(self._records, batch)
            refuse_drawn_as_public(self._last_batch, batch)
            if not count(batch):
                raise validation.fail("batch", "no records", "must hold public records")
            take_public_step(self.engine, self.optimizer, batch)
            self._foreign_steps.note()
            self._public_steps = True

    @property
    def steps_done(self) -> int:
        """The number of steps taken."""
        return self._step.steps_done

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on besides model and optimizer; see `PrivateStep`."""
        return self._step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned, with fresh randomness, before the first draw.

        Args:
            state: of a run of the same plan. Its `steps_done` may be raised to count steps that
                were charged and lost.
        """
        if self._reader.begun:
            raise MisuseError(
                f"state_dict at step {self.steps_done + 1}: must be loaded before the first draw; "
                "make a new private object and load it there."
            )
        self._step.load_state_dict(state)

    def epsilon(self) -> float:
        """ε at the plan's δ for the steps taken so far, by PLD; infinite for seeded noise.

        It is valid if a record's clipped gradient depends on that record alone.
        `report().isolation` says how this is known: "proven" and "isolated" are proofs, "probed" is
        not.
        """
        if self._not_private_reason is not None and self.steps_done:
            return math.inf
        return self._step.settled_plan().epsilon_spent(self.steps_done)

    def statement(self) -> Statement:
        """The privacy statement of the whole plan; NOT PRIVATE if the randomness was seeded."""
        promised = self._step.settled_plan().statement(self._not_private_reason)
        public = self.engine.public_records
        return replace(
            promised,
            also_read=self._records.also_read,
            public_records=public,
            starts=tuple(sentence for sentence, _ in starts_of(self.model)),
            public_steps=self._public_steps,
            isolation=self.report().isolation,
            collated=self._records.isolation,
        )

    def report(self) -> Report:
        """The results of the probe: layer table, unused weights, memory per record."""
        return self._probes.report(self._example)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.engine.parameters.items()}


def example_for(engine: ClippedSum, records: Records) -> Any:
    """A batch without records, on the device of the weights."""
    return each(lambda tensor: tensor.to(engine.device), records.example())


def draw_of(plan: Plan, rows: int, groups: Sequence[Any] | None) -> Draw:
    """The function that draws the rows of each step."""
    return plan.sampling.begin(rows, plan.population or rows, plan.batch_size, groups)
