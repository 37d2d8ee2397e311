"""The clipped sum: Σᵢ clip(gᵢ + λθ) at nearly the cost of Σᵢ gᵢ.

One forward pass and one backward pass that stops at the activations give, for every weight, what
each per-example gradient consists of. Norms follow from that, then one weighted sum for each
weight. Per-example gradients are written out only if that is the cheapest way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from steppe.clipping.clip import Clip, PublicGradients
from steppe.clipping.physical_batches import fitting_physical_batch, physical_batches
from steppe.errors import ConfigurationError, MisuseError, SteppeError, UnsupportedModelError
from steppe.gradients import (
    ContactLayout,
    EachRecord,
    FlatWeights,
    Kernels,
    Objective,
    PlainSequential,
    RecordGradients,
    RecordLosses,
    Strengths,
    TracedPasses,
    WeightSlots,
    plain_sequential,
)
from steppe.utils.batches import count
from steppe.utils.formatting import as_said


class ClippedSum:
    """Adds a batch's clipped per-example gradients to a flat buffer, and decodes the noised answer.

    Args:
        parameters: the weights to train, by name; their order is the order in the buffer.
        objective: maps a batch to one loss for each record.
        clip: bounds per-example gradients.
        l2: λ of the term λθ that joins every record's gradient before the clip; a mapping from name
            prefixes gives parts of the model their own.
        physical_batch: how many records pass through the model at once; None means all.
        layouts: the record axes of each operation, as the probe found them; None means the first
            axis everywhere.
        kernels: the algorithm for each layer shape; timed on the first batch unless pinned.
        public: a batch of public records, for clips that learn directions from them.
        padded_to: how many rows every batch is padded to, so that the passes through the model have
            the same shapes for every batch; None does not pad.
        one_at_a_time: processes one record at a time; None processes them together.

    Guarantees:
        Adding or removing one record moves the sum by at most `clip.sensitivity` in l2 norm, up to
        float32 rounding. A record with a non-finite gradient adds exactly zero and changes nothing
        else. Padding rows add exactly zero, whatever the model computes from them. An empty
        batch adds nothing; the model does not run unless the batch is padded.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        objective: Objective,
        clip: Clip,
        *,
        l2: float | Strengths = 0.0,
        physical_batch: int | None = None,
        layouts: list[ContactLayout] | None = None,
        kernels: Kernels | None = None,
        public: Any = None,
        padded_to: int | None = None,
        one_at_a_time: EachRecord | None = None,
    ) -> None:
        self.one_at_a_time = one_at_a_time
        self.weights = FlatWeights(parameters, l2)
        self.parameters = self.weights.parameters
        self._objective = objective
        self.clip = clip
        self.l2 = l2
        self.physical_batch = physical_batch
        self.padded_to = padded_to
        self.kernels = kernels or Kernels()
        self.passes = TracedPasses(self.weights, self.kernels, layouts)
        self.public_records = 0 if public is None else count(public)
        gradients = None if public is None else self._gradients_of(public)
        self.clipper = clip.begin(self.parameters, gradients)

    @property
    def objective(self) -> Objective:
        """Maps a batch to its losses. It cannot be replaced, because it was probed."""
        return self._objective

    def exchange_objective_(self, objective: Objective) -> None:
        """Use another objective, which is not probed: for measurements of a run."""
        self._objective = objective

    @property
    def numel(self) -> int:
        """How many numbers the trained weights have together."""
        return self.weights.numel

    @property
    def width(self) -> int:
        """How many numbers a query releases, and so the length of its buffer."""
        return self.clipper.width

    @property
    def runs_users_code(self) -> bool:
        """Whether a pass may run Python that is not torch's own, as the model is now."""
        objective = self._objective
        return not isinstance(objective, RecordLosses) or objective.runs_users_code

    def sequential(self) -> PlainSequential | None:
        """The model as plain layers that need no tracer, or None if it is not such a model now."""
        if self.in_mixed_precision or self.one_at_a_time is not None:
            return None
        return plain_sequential(self._objective)

    def part_of(self, flat: Tensor, name: str) -> Tensor:
        """The part of a flat vector that belongs to a weight, in its shape."""
        return self.weights.part_of(flat, name)

    def prepare(self) -> None:
        """Prepare the clip for a query at the current weights."""
        if self.clipper.releases_gradients:
            return  # nothing to do, and entering contexts takes longer than a small layer
        with torch.no_grad(), self._own_precision():
            self.clipper.prepare()

    def rehearse(self) -> None:
        """Prepare once and reset, so that unsuitable public records are an error at set-up."""
        before = self.clipper.state()
        try:
            self.prepare()
        except Exception as error:  # whatever model, loss or tracer say about another form
            if isinstance(error, SteppeError) and not isinstance(error, UnsupportedModelError):
                raise
            raise ConfigurationError(
                "public=a batch: must go through model and loss like a batch of the data; give it "
                f"the same form.\n{as_said(error)}"
            ) from error
        self.clipper.load(before)

    @property
    def bytes_written_out(self) -> int:
        """Memory that the clip needs for each record of a physical batch."""
        copies = 3 if self.clipper.writes_out else 0  # the gradient, a part of it, a product
        return copies * self.numel * 4

    def choose_physical_batch(self, bytes_per_record: int) -> None:
        """Choose how many records pass through the model at once.

        Args:
            bytes_per_record: what a record keeps alive in the model.
        """
        weights = sum(p.numel() * p.element_size() for p in self.parameters.values())
        held = bytes_per_record + self.bytes_written_out
        self.physical_batch = fitting_physical_batch(held, weights)

    def decode(self, answer: Tensor) -> Tensor:
        """The flat gradient in a noised sum that was divided by the expected batch."""
        if self.clipper.releases_gradients:
            return answer  # as in `prepare`
        with torch.no_grad(), self._own_precision():
            return self.clipper.decode(answer)

    @torch.no_grad()
    def add_(self, out: Tensor, batch: Any, sequential: PlainSequential | None = None) -> Tensor:
        """Add the clipped sum of `batch` to a buffer of `width` numbers.

        Args:
            out: the buffer.
            batch: the records.
            sequential: as for `captured`.

        Returns:
            The norms before clipping, one for each record. They are private: nothing may be
            published from them without noise of its own.
        """
        norms = [
            self.add_slots_(out, found, size, padding=padding)
            for found, size, padding in self.captured(batch, sequential)
        ]
        return torch.cat(norms) if norms else torch.zeros(0, device=self.device)

    def captured(
        self, batch: Any, sequential: PlainSequential | None = None
    ) -> Iterator[tuple[WeightSlots, int, int]]:
        """The per-example gradients of a batch, one physical batch at a time.

        Args:
            batch: the records.
            sequential: from `sequential`, asked for this batch; a tracer looks at the model without
                it.

        Yields:
            The slots, how many rows went through the model, and how many of them, the last ones,
            are padding.
        """
        for part, size, padding in physical_batches(batch, self.physical_batch, self.padded_to):
            yield self.slots(part, size, sequential), size, padding

    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, scale: float = 1.0, padding: int = 0
    ) -> Tensor:
        """Add the clipped sum of per-example gradients that were captured already.

        Args:
            out: as for `add_`.
            found: from `slots` or `collected`. They are used up, so that the next ones find room.
            records: how many records they belong to.
            scale: what turns a captured gradient into the record's own: B after a loss that was
                averaged over the B records.
            padding: how many of them, the last ones, are no records and add nothing.

        Returns:
            The norms before clipping, as for `add_`; padding has none.
        """
        if out.shape != (self.width,) or out.dtype not in (torch.float32, torch.float64):
            raise MisuseError(
                f"out={tuple(out.shape)} {out.dtype}: must be a flat float32 or float64 "
                f"buffer of {self.width} numbers; make it with torch.zeros(engine.width)."
            )
        gradients = RecordGradients(found, records, scale, self.weights, padding=padding)
        with self._own_precision():
            norms = self.clipper.add_(out, gradients)
        found.clear()
        return norms[: records - padding] if padding else norms

    @property
    def in_mixed_precision(self) -> bool:
        """Whether autocast is on where the weights are."""
        return torch.is_autocast_enabled(self.device.type)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.weights.device

    def _own_precision(self) -> AbstractContextManager[Any]:
        """A block without mixed precision, whose products are too imprecise for clipping."""
        if not self.in_mixed_precision:
            return nullcontext()  # entering autocast takes longer than a small layer
        return torch.autocast(self.device.type, enabled=False)

    def _gradients_of(self, public: Any) -> PublicGradients:
        """Gradients of public records, a physical batch at a time, by the objective given now."""
        objective = self._objective

        def gradients() -> Iterator[Tensor]:
            for part, size, _ in physical_batches(public, self.physical_batch):
                found = self._captured(objective, part, size)
                yield RecordGradients(found, size, 1.0, self.weights).written_out(torch.float32)

        return PublicGradients(self.public_records, gradients)

    def slots(
        self, batch: Any, records: int | None = None, sequential: PlainSequential | None = None
    ) -> WeightSlots:
        """One slot for each trained weight that the batch used."""
        records = count(batch) if records is None else records
        found = None
        if sequential is not None:
            found = sequential.slots(batch, records, bool(self.weights.pulls))
        if found is None:
            return self._captured(self._objective, batch, records)
        self.passes.require_known(found)
        return found

    def _captured(self, objective: Objective, batch: Any, records: int) -> WeightSlots:
        if self.one_at_a_time is None:
            return self.passes.slots(objective, batch, records)
        with torch.enable_grad():
            return self.one_at_a_time.slots(objective, batch, records)
