"""The object that takes the steps of a private loop."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.accounting import Statement
from steppe.clipping import ClippedSum
from steppe.errors import MisuseError
from steppe.plan import Plan
from steppe.private.batch_reader import BatchReader
from steppe.private.foreign_steps import ForeignSteps
from steppe.private.setup_checks import warn_of_unused
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
from steppe.step import PrivateStep
from steppe.utils import validation
from steppe.utils.batches import count, each


class Private:
    """Draws batches, takes private steps and knows what they cost. Made by `make_private`.

    Attributes:
        model, optimizer: yours, unchanged.
        plan: the public constants in use.
        engine: the clipped sum.
        groups: the rows of each group of records, where the sampler asks for groups.
        padding_rows: the row that stands for padding, by the name of its embedding table.

    Guarantees:
        Every batch that is drawn must be stepped, empty ones too; a batch can be stepped once; the
        plan's last step is the last one.
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
        # The step of the batch that was handed out last, and how many records it has.
        self._handed_out = (-1, 0)
        found = self._probes.expect([self._example])
        refuse_coarse_products(engine)  # of layers that the probe has found
        warn_of_unused(found.unused, found.detached)
        engine.rehearse()
        self.padding_rows = self._probes.padding_rows(found)
        self._step = PrivateStep(plan, engine, optimizer, source, self.padding_rows)
        self._records = records
        draw = draw_of(plan, len(records), groups)
        self._reader = BatchReader(draw, records, source, plan.total_steps)
        self._foreign_steps = ForeignSteps(engine.parameters)
        self._lock = threading.RLock()  # a step inside a step is refused, not waited for

    @property
    def plan(self) -> Plan:
        """The public constants, which stay as they are: the account and the steps go by them."""
        return self._step.plan

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left, one for each step of the plan.

        A loop that begins after another was left between a draw and its step is offered the same
        draw again.
        """
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
            self._handed_out = (step, count(batch))
            yield batch
        self._foreign_steps.require_alone()

    @property
    def _drawn(self) -> int | None:
        """The records of the batch that was handed out for the next step, if one was."""
        step, size = self._handed_out
        return size if step == self.steps_done else None

    def __len__(self) -> int:
        """How many batches are left."""
        return self.plan.total_steps - self.steps_done

    def batches(self, steps: int) -> Iterator[Any]:
        """The next `steps` batches: an epoch, say, with an evaluation after it."""
        return itertools.islice(iter(self), validation.positive_integer("steps", steps))

    def accumulate(self, part: Any) -> None:
        """Put a part of the drawn batch aside; `step()` without a batch then uses all parts.

        The parts must hold every drawn record once: their number is checked, the rest is yours.
        Refused where the plan fixes the shapes: the number of parts would tell the batch's size.
        """
        require_whole(self.plan, "part", part)
        count(part)  # refuses what is no batch while nothing is put aside yet
        self._parts.append(part)

    def step(self, batch: Any = None) -> None:
        """Take one private step.

        Args:
            batch: the batch that was drawn, possibly moved to a device or transformed record by
                record; None after `accumulate`.
        """
        with self._lock:  # of two threads with one batch the second is refused
            self._take(batch)

    def _take(self, batch: Any) -> None:
        if self.steps_done >= self.plan.total_steps:
            self._step.take(())  # which refuses: the plan is used up, whatever the batch is
        self._foreign_steps.require_alone()
        if batch is None:
            require_whole(self.plan, "batch", None)
        parts = self._parts if batch is None else [*self._parts, batch]
        found = sum(count(part) for part in parts)
        if self._drawn is None or found != self._drawn:
            # Whoever passes a batch now, or has put too much aside, begins again.
            if batch is not None or found > (self._drawn or 0):
                self._parts = []
            raise MisuseError(
                "batch=more or fewer records: must be the batch just drawn, each record once; "
                "iterate over the private object and pass on what it yields."
            )
        refuse_modes(self.engine)
        self._probes.expect(parts or [self._example])
        done = self.steps_done
        # Of torch's own code all that could change is compared in every step.
        if done in LOOK_AGAIN and self.engine.runs_users_code:
            self._probes.look_again()
        before = self._snapshot() if done == 0 else {}
        try:
            self._step.take(parts)
        finally:
            self._foreign_steps.note()
            if self.steps_done > done:  # charged: the batch is used up, whatever became of it
                self._parts = []
        require_untouched(self.model)
        require_movement(before, self.engine.parameters, self.optimizer)

    @property
    def steps_done(self) -> int:
        """How many steps were taken."""
        return self._step.steps_done

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on besides model and optimizer; see `PrivateStep`."""
        return self._step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, with fresh randomness, before any batch is drawn.

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
        """ε at the plan's δ for the steps taken so far, by PLD; infinite where noise was seeded.

        It holds if a record's clipped gradient depends on that record alone. `report().isolation`
        says how this is known: "proven" and "isolated" are proofs, "probed" is none.
        """
        if self._not_private_reason is not None and self.steps_done:
            return math.inf
        return self._step.settled_plan().epsilon_spent(self.steps_done)

    def statement(self) -> Statement:
        """What the whole plan promises; NOT PRIVATE where the randomness was seeded."""
        promised = self._step.settled_plan().statement(self._not_private_reason)
        public = self.engine.public_records
        return replace(
            promised,
            also_read=self._records.also_read,
            public_records=public,
            isolation=self.report().isolation,
            collated=self._records.isolation,
        )

    def report(self) -> Report:
        """What the probe found: the layer table, unused weights, memory per record."""
        return self._probes.report(self._example)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.engine.parameters.items()}


def example_for(engine: ClippedSum, records: Records) -> Any:
    """A batch without records, where the weights are: a loop moves its batches there."""
    return each(lambda tensor: tensor.to(engine.device), records.example())


def draw_of(plan: Plan, rows: int, groups: Sequence[Any] | None) -> Draw:
    """Who takes part in each step of a plan, among so many rows."""
    return plan.sampling.begin(rows, plan.population or rows, plan.batch_size, groups)
