"""The clipped sum: Σᵢ clip(gᵢ + λθ) at nearly the price of Σᵢ gᵢ.

One forward pass and one backward pass that stops at the activations give, for every weight, what
each record's gradient is made of. Norms follow from that, then one weighted sum for each weight.
Per-record gradients are written out only where that is the cheapest way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from steppe import _validate
from steppe._text import first_line
from steppe.clipping.batches import count, each, tensors_in, version
from steppe.clipping.captured import Captured, Found, Packing, Strengths
from steppe.clipping.clip import Anchors, Clip, Scaled
from steppe.clipping.contact import ANCHOR, Layouts, Use, backward_to
from steppe.clipping.kernels import Kernels
from steppe.clipping.objective import RecordLosses
from steppe.clipping.pieces import pieces
from steppe.clipping.pullback import pulled_back, shortened
from steppe.clipping.row import Row, row_of
from steppe.clipping.rules import RULES
from steppe.clipping.several import added
from steppe.clipping.tracing import Tracer, is_marked, mark
from steppe.errors import MisuseError, SteppeError, UnsupportedModelError

Objective = Callable[[Any], Tensor]
Buffer = Tensor | Callable[[], Tensor]
"""A flat buffer, or a function that gives it whenever it is asked, the same one each time."""

_AS_IT_IS = nullcontext()


class ClippedSum:
    """Adds what a batch's records may say to one flat buffer, and reads the noised answer.

    Args:
        parameters: the weights to train, by name; their order is the order in the buffer.
        objective: maps a batch to one loss for each record.
        clip: how much a record may say.
        l2: λ of the term λθ that joins every record's gradient before the clip; a mapping from name
            prefixes gives parts of the model their own.
        physical_batch: how many records go through the model at once; None takes all.
        layouts: where the records lie in each operation, as the probe found them; None means
            record axis first everywhere.
        kernels: which way each layer shape takes; measured on the first batch unless pinned.
        public: a batch of public records, for clips that learn directions from them.
        padded_to: how many rows every batch is filled up to, so that the passes through the model
            have the same shapes for every batch; None leaves batches as they are.

    Guarantees:
        Adding or removing one record moves the sum by at most `clip.sensitivity` in l2 norm, up to
        float32 rounding. A record with a non-finite gradient adds exactly zero and changes nothing
        else. Rows that a batch is filled up with add exactly zero, whatever the model makes of
        them. An empty batch adds nothing; it does not run the model unless it is filled up.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        objective: Objective,
        clip: Clip,
        *,
        l2: float | Strengths = 0.0,
        physical_batch: int | None = None,
        layouts: list[Layouts] | None = None,
        kernels: Kernels | None = None,
        public: Any = None,
        padded_to: int | None = None,
    ) -> None:
        self.packing = Packing(parameters, l2)
        self.parameters = self.packing.parameters
        self.objective = objective
        self.clip = clip
        self.l2 = l2
        self.physical_batch = physical_batch
        self.padded_to = padded_to
        self._layouts = layouts
        self._writes_batch: bool | None = None
        self.kernels = kernels or Kernels()
        self.public_records = 0 if public is None else count(public)
        anchors = None if public is None else Anchors(self.public_records, self._anchors(public))
        self.clipper = clip.begin(self.parameters, anchors)

    @property
    def layouts(self) -> list[Layouts] | None:
        """Where the records lie in each operation; new ones come with a new mode of the model."""
        return self._layouts

    @layouts.setter
    def layouts(self, layouts: list[Layouts] | None) -> None:
        if layouts is not self._layouts:
            self._layouts, self._writes_batch = layouts, None

    @property
    def numel(self) -> int:
        """How many numbers the trained weights have together."""
        return self.packing.numel

    @property
    def width(self) -> int:
        """How many numbers a query releases, and so the length of its buffer."""
        return self.clipper.width

    @property
    def runs_users_code(self) -> bool:
        """Whether a pass may run Python that is not torch's own, as the model is now."""
        objective = self.objective
        return not isinstance(objective, RecordLosses) or objective.runs_users_code

    def row(self) -> Row | None:
        """The model as a row of layers that needs no tracer, where it is one as it is now."""
        return None if self.in_mixed_precision else row_of(self.objective)

    def part_of(self, flat: Tensor, name: str) -> Tensor:
        """The piece of a flat vector that belongs to a weight, in its shape."""
        return self.packing.part_of(flat, name)

    def prepare(self) -> None:
        """Make the clip ready for a query at the weights as they are."""
        if type(self.clipper) is Scaled:
            return  # nothing to do, and entering contexts takes longer than a small layer
        with torch.no_grad(), self._own_precision():
            self.clipper.prepare()

    def rehearse(self) -> None:
        """Prepare once and forget it, so that public records that do not fit fail at set-up."""
        before = self.clipper.state()
        try:
            self.prepare()
        except Exception as error:  # whatever model, loss or tracer say about another form
            if isinstance(error, SteppeError) and not isinstance(error, UnsupportedModelError):
                raise
            raise _validate.fail(
                "public",
                "a batch",
                "must go through model and loss like a batch of the data, but: "
                + first_line(error).rstrip("."),
                "give it the same form",
            ) from error
        self.clipper.load(before)

    @property
    def bytes_written_out(self) -> int:
        """Memory that the clip needs for each record of a physical batch."""
        copies = 3 if self.clipper.writes_out else 0  # the gradient, a part of it, a product
        return copies * self.numel * 4

    def decode(self, answer: Tensor) -> Tensor:
        """The flat gradient in a noised sum that was divided by the expected batch."""
        if type(self.clipper) is Scaled:
            return answer  # as in `prepare`
        with torch.no_grad(), self._own_precision():
            return self.clipper.decode(answer)

    def add_(self, out: Buffer, batch: Any, row: Row | None = None) -> Tensor:
        """Add the clipped sum of `batch` to a buffer of `width` numbers.

        Args:
            out: the buffer. A function is asked after the passes through the model, so what it
                makes, such as the noise that a sum starts as, is not held beside activations.
            batch: the records.
            row: from `row`, asked for this batch; a tracer looks at the model without it.

        Returns:
            The norms before clipping, one for each record. They are private: nothing may be
            published from them without noise of its own.
        """
        with torch.no_grad():
            norms = [
                # Without a name for them, a piece's slots are gone before the next one needs room.
                self.add_slots_(out, self.slots(piece, size, row), size, padding=padding)
                for piece, size, padding in pieces(batch, self.physical_batch, self.padded_to)
            ]
        if not norms:
            return torch.zeros(0, device=self.device)
        return norms[0] if len(norms) == 1 else torch.cat(norms)

    def add_slots_(
        self, out: Buffer, found: Found, records: int, scale: float = 1.0, padding: int = 0
    ) -> Tensor:
        """Add the clipped sum of per-record gradients that were captured already.

        Args:
            out: as for `add_`.
            found: from `slots` or `collected`.
            records: how many records they belong to.
            scale: what turns a captured gradient into the record's own: B after a loss that was
                averaged over the B records.
            padding: how many of them, the last ones, are no records and add nothing.

        Returns:
            The norms before clipping, as for `add_`; padding has none.
        """
        buffer = in_hand(out)
        if buffer.shape != (self.width,) or buffer.dtype not in (torch.float32, torch.float64):
            raise MisuseError(
                f"out={tuple(buffer.shape)} {buffer.dtype}: must be a flat float32 or float64 "
                f"buffer of {self.width} numbers; make it with torch.zeros(engine.width)."
            )
        captured = Captured(found, records, scale, self.packing, padding=padding)
        with self._own_precision():
            norms = self.clipper.add_(buffer, captured)
        return norms[: records - padding] if padding else norms

    @property
    def in_mixed_precision(self) -> bool:
        """Whether autocast is on where the weights are."""
        return torch.is_autocast_enabled(self.device.type)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.packing.device

    def _own_precision(self) -> AbstractContextManager[Any]:
        """Where mixed precision around a step ends: its products are too coarse to clip by."""
        if not self.in_mixed_precision:
            return _AS_IT_IS  # entering autocast takes longer than a small layer
        return torch.autocast(self.device.type, enabled=False)

    def _anchors(self, public: Any) -> Callable[[], Iterator[Tensor]]:
        """Gradients of public records, a physical batch at a time, by the objective given now."""
        objective = self.objective

        def gradients() -> Iterator[Tensor]:
            for piece, size, _ in pieces(public, self.physical_batch):
                tracer = self.trace(piece, size, objective)
                found = Captured(self.collected(tracer.uses), size, 1.0, self.packing)
                yield found.written_out(torch.float32)

        return gradients

    def slots(self, batch: Any, records: int | None = None, row: Row | None = None) -> Found:
        """One slot for each trained weight that the batch used."""
        records = count(batch) if records is None else records
        found = None if row is None else row.slots(batch, records, bool(self.packing.pulls))
        if found is None:
            return self.collected(self.trace(batch, records).uses)
        self._require_known(found)
        return found

    def collected(self, uses: Sequence[Use]) -> Found:
        """What the backward passes since the last call left at the uses, by trained weight."""
        found: dict[int, Found] = defaultdict(list)
        for use in uses:
            for pair in use.slots:
                shared, slot = shortened(*pair)
                found[id(shared)].append((shared, slot))
            use.slots = []
        plain: Found = []
        derived: Found = []
        for pairs in found.values():
            shared = pairs[0][0]
            slot = pairs[0][1] if len(pairs) == 1 else added([s for _, s in pairs])
            (plain if shared.is_leaf else derived).append((shared, slot))
        if derived:
            trained = (p for p in self.parameters.values() if p.requires_grad)
            plain = pulled_back(plain, derived, trained)
        self._require_known(plain)
        return plain

    def _require_known(self, found: Found) -> None:
        strangers = [tuple(leaf.shape) for leaf, _ in found if id(leaf) not in self.packing.slices]
        if strangers:
            raise MisuseError(
                f"weights of shapes={strangers[:3]}: must be among the trained ones, and need a "
                "gradient that nobody asked for; freeze them with requires_grad_(False), or make "
                "the loop private after the model has its final weights."
            )

    def tracer(self, records: int) -> Tracer:
        """A tracer for one forward pass of so many records."""
        return Tracer(
            records, RULES, self.layouts, self.kernels, want_dots=bool(self.packing.pulls)
        )

    def trace(
        self, batch: Any, records: int | None = None, objective: Objective | None = None
    ) -> Tracer:
        """Run the objective on one physical batch and its backward pass to the activations."""
        objective = objective or self.objective
        records = count(batch) if records is None else records
        alias = self._for_model(batch)
        tensors = list(tensors_in(alias))
        before = [version(tensor) for tensor in tensors]
        tracer = self.tracer(records)
        with torch.enable_grad():
            with tracer:
                losses = objective(alias)
            check_losses(losses, records)
            tracer.require_whole()
            self._note_writes([version(tensor) for tensor in tensors] != before)
            if tracer.uses:
                for use in tracer.uses:
                    use.slots = []  # left by a gradient that the objective took inside
                backward_to(ANCHOR, losses)  # and so to every contact
        return tracer

    def _for_model(self, batch: Any) -> Any:
        """The batch under new names, marked as records; the caller's own tensors stay unmarked.

        A model that changes its input in place gets a copy, because a step may ask about the same
        batch again. Whether it does shows in its first pass, so all others copy nothing in vain.
        """
        copies = self._writes_batch is not False

        def alias(tensor: Tensor) -> Tensor:
            found = tensor.detach().clone() if copies else tensor.detach()
            mark(found)
            return found

        return each(alias, batch)

    def _note_writes(self, written: bool) -> None:
        """Remember whether the objective writes to its batch, and refuse one that begins to."""
        if written and self._writes_batch is False:
            raise UnsupportedModelError(
                "batch=written: must be changed in place in every forward pass or in none, and was "
                "for the first time after others; work on a copy (x = x.clone())."
            )
        self._writes_batch = written or bool(self._writes_batch)


def in_hand(out: Buffer) -> Tensor:
    """The buffer itself."""
    return out if isinstance(out, Tensor) else out()


def check_losses(losses: Any, records: int) -> None:
    """Refuse anything but one loss for each record, made from the records."""
    if not isinstance(losses, Tensor) or losses.shape != (records,):
        # Without its lengths: how many records were drawn is private.
        form = f"{losses.ndim} axes" if isinstance(losses, Tensor) else type(losses).__name__
        raise UnsupportedModelError(
            f"loss={form}: must be one number for each record, a tensor of 1 axis; use "
            "reduction='none' and average over everything but the records."
        )
    if not is_marked(losses):
        raise UnsupportedModelError(
            "loss=constant: must be computed from the records by torch operations; check that the "
            "objective uses the batch it is given."
        )
