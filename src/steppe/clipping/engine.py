"""The clipped sum: Σᵢ clip(gᵢ + λθ) at nearly the price of Σᵢ gᵢ.

One forward pass and one backward pass that stops at the activations give, for every weight, what
each record's gradient is made of. Norms follow from that, then one weighted sum for each weight.
Per-record gradients are written out only where that is the cheapest way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from steppe.clipping.batches import count, each, rows
from steppe.clipping.clip import Clip
from steppe.clipping.kernels import Kernels
from steppe.clipping.pullback import pulled_back, shortened
from steppe.clipping.rules import RULES
from steppe.clipping.slots import GUARD, Slot, added, squared_rows, wide_dtype
from steppe.clipping.tracing import ANCHOR, Layouts, Tracer, is_marked, mark
from steppe.errors import MisuseError, UnsupportedModelError

Objective = Callable[[Any], Tensor]


class ClippedSum:
    """Adds a batch's clipped per-record gradients to one flat buffer.

    Args:
        parameters: the weights to train, by name; their order is the order in the buffer.
        objective: maps a batch to one loss for each record.
        clip: how much a record may say.
        l2: λ of the term λθ that joins every record's gradient before the clip.
        physical_batch: how many records go through the model at once; None takes all.
        layouts: where the records lie in each operation, as the probe found them; None means
            record axis first everywhere.
        kernels: which way each layer shape takes; measured on the first batch unless pinned.

    Guarantees:
        Adding or removing one record moves the sum by at most `clip.sensitivity` in l2 norm, up to
        float32 rounding. A record with a non-finite gradient adds exactly zero and changes nothing
        else. An empty batch adds nothing and does not run the model.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        objective: Objective,
        clip: Clip,
        *,
        l2: float = 0.0,
        physical_batch: int | None = None,
        layouts: list[Layouts] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self.objective = objective
        self.clip = clip
        self.l2 = l2
        self.physical_batch = physical_batch
        self.layouts = layouts
        self.kernels = kernels or Kernels()
        self.numel = sum(p.numel() for p in self.parameters.values())
        self._slices: dict[int, tuple[int, int]] = {}
        start = 0
        for parameter in self.parameters.values():
            self._slices[id(parameter)] = (start, start + parameter.numel())
            start += parameter.numel()

    def part_of(self, flat: Tensor, name: str) -> Tensor:
        """The piece of a flat vector that belongs to a weight, in its shape."""
        parameter = self.parameters[name]
        start, end = self._slices[id(parameter)]
        return flat[start:end].view_as(parameter)

    @torch.no_grad()
    def add_(self, out: Tensor, batch: Any) -> Tensor:
        """Add the clipped sum of `batch` to the flat buffer `out`.

        Returns:
            The norms before clipping, one for each record. They are private: nothing may be
            published from them without noise of its own.
        """
        if out.shape != (self.numel,) or out.dtype not in (torch.float32, torch.float64):
            raise MisuseError(
                f"out={tuple(out.shape)} {out.dtype}: must be a flat float32 or float64 buffer of "
                f"{self.numel} numbers; make it with torch.zeros(engine.numel)."
            )
        total = count(batch)
        step = self.physical_batch or max(total, 1)
        if 0 < total <= step:
            return self.add_slots_(out, self.slots(batch, total), total)
        norms = []
        for start in range(0, total, step):
            size = min(step, total - start)
            piece = self.slots(rows(batch, slice(start, start + size)), size)
            norms.append(self.add_slots_(out, piece, size))
        return torch.cat(norms) if norms else torch.zeros(0)

    def add_slots_(
        self, out: Tensor, found: list[tuple[Tensor, Slot]], records: int, scale: float = 1.0
    ) -> Tensor:
        """Add the clipped sum of per-record gradients that were captured already.

        Args:
            out: the flat buffer.
            found: from `slots` or `collected`.
            records: how many records they belong to.
            scale: what turns a captured gradient into the record's own: B after a loss that was
                averaged over the B records.

        Returns:
            The norms before clipping, as for `add_`.
        """
        squared = self._squared_norms(found, records, scale)
        norms = squared.sqrt()
        factors = self.clip.factors(norms).to(out.dtype)
        bad = torch.nonzero(factors == 0).flatten()  # non-finite records, by the clip's contract
        weights = factors if scale == 1.0 else factors * scale
        for leaf, slot in found:
            start, end = self._slices[id(leaf)]
            if out.dtype == wide_dtype(leaf):
                slot.add_(out[start:end], weights, bad)
            else:  # float64 weights beside float32 ones
                part = torch.zeros(end - start, dtype=wide_dtype(leaf))
                slot.add_(part, weights.to(part.dtype), bad)
                out[start:end] += part
        if self.l2:
            weight = self.l2 * float(factors.sum(dtype=torch.float64))
            for parameter in self.parameters.values():
                start, end = self._slices[id(parameter)]
                out[start:end].add_(parameter.detach().flatten(), alpha=weight)
        return norms

    def _squared_norms(
        self, found: list[tuple[Tensor, Slot]], records: int, scale: float
    ) -> Tensor:
        parts = [slot.squared_norms() for _, slot in found] or [torch.zeros(records)]
        squared = parts[0].double()  # many small terms: add them in float64
        for part in parts[1:]:
            squared += part
        if scale != 1.0:
            squared *= scale**2
        if self.l2:
            plain = squared.clone()
            for leaf, slot in found:
                squared += (2 * self.l2 * scale) * slot.dots(leaf.detach())
            weights = sum(float(squared_rows(p.detach()[None])) for p in self.parameters.values())
            # The three terms may cancel; as in the slots, the rounding they leave is added on top.
            guard = GUARD * torch.finfo(torch.float32).eps * (plain + self.l2**2 * weights)
            squared = (squared + self.l2**2 * weights).clamp_(min=0.0) + guard
        return squared

    def slots(self, batch: Any, records: int | None = None) -> list[tuple[Tensor, Slot]]:
        """One slot for each trained weight that the batch used."""
        return self.collected(self.trace(batch, records))

    def collected(self, tracer: Tracer) -> list[tuple[Tensor, Slot]]:
        """What the backward passes since the last call left at the tracer, by trained weight."""
        uses: dict[int, list[tuple[Tensor, Slot]]] = defaultdict(list)
        for use in tracer.uses:
            for pair in use.slots:
                shared, slot = shortened(*pair)
                uses[id(shared)].append((shared, slot))
            use.slots = []
        plain: list[tuple[Tensor, Slot]] = []
        derived: list[tuple[Tensor, Slot]] = []
        for pairs in uses.values():
            shared = pairs[0][0]
            slot = pairs[0][1] if len(pairs) == 1 else added([s for _, s in pairs])
            (plain if shared.is_leaf else derived).append((shared, slot))
        if derived:
            trained = (p for p in self.parameters.values() if p.requires_grad)
            plain = pulled_back(plain, derived, trained)
        self._require_known(plain)
        return plain

    def _require_known(self, found: list[tuple[Tensor, Slot]]) -> None:
        strangers = [tuple(leaf.shape) for leaf, _ in found if id(leaf) not in self._slices]
        if strangers:
            raise MisuseError(
                f"weights of shapes={strangers[:3]}: must be among the trained ones, and need a "
                "gradient that nobody asked for; freeze them with requires_grad_(False), or make "
                "the loop private after the model has its final weights."
            )

    def tracer(self, records: int) -> Tracer:
        """A tracer for one forward pass of so many records."""
        return Tracer(records, RULES, self.layouts, self.kernels, want_dots=bool(self.l2))

    def trace(self, batch: Any, records: int | None = None) -> Tracer:
        """Run the objective on one physical batch and its backward pass to the activations."""
        records = count(batch) if records is None else records
        alias = each(Tensor.detach, batch)  # marks stay off the caller's tensors
        mark(alias)
        tracer = self.tracer(records)
        with torch.enable_grad():
            with tracer:
                losses = self.objective(alias)
            check_losses(losses, records)
            tracer.require_whole()
            if tracer.uses:
                torch.autograd.grad(losses, ANCHOR, torch.ones_like(losses), allow_unused=True)
        return tracer


def check_losses(losses: Any, records: int) -> None:
    """Refuse anything but one loss for each record, made from the records."""
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if shape != (records,):
        raise UnsupportedModelError(
            f"loss shape={shape}: must be ({records},), one loss for each record; use "
            "reduction='none' and average over everything but the records."
        )
    if not is_marked(losses):
        raise UnsupportedModelError(
            "loss=constant: must be computed from the records by torch operations; check that the "
            "objective uses the batch it is given."
        )
