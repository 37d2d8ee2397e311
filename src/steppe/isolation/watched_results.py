"""Gives the results of operations their owners, and those of memory that operations write to.

A rule has said whose the elements of a result are. Here they are stored, unless the result depends
on a record's position in the batch; then it is mixed. A write changes the owners of all tensors
over the same memory. A write to memory from before the pass is a finding, because it outlives the
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from steppe.isolation.call import Call
from steppe.isolation.findings import OWNED, RANDOM, Finding
from steppe.isolation.operation_notes import Constant
from steppe.isolation.operators import MOVING
from steppe.isolation.owners import FREE, MIXED, everywhere, filled_rows, squeezed
from steppe.isolation.places import even, same_for_all
from steppe.isolation.random_owners import RandomOwners
from steppe.isolation.schemas import tensors_among, written_by
from steppe.isolation.watched_draws import WatchedDraws, owners_in
from steppe.isolation.watched_tensors import place_in_memory

_FEW = 8  # up to so many records it is compared where each has its elements


class WatchedResults(WatchedDraws):
    """The results of one pass. For the arguments see `WatchedDraws`."""

    together = True  # in one tensor, so a result of some of them depends on positions

    def __init__(
        self,
        records: int,
        layer: Callable[[], str | None],
        fake: FakeTensorMode | None,
        seed: int,
        random_owners: RandomOwners | None,
    ) -> None:
        super().__init__(records, layer, fake, seed, random_owners)
        self._before: list[tuple[Tensor, Tensor]] = []
        self._memories: list[Constant] = []  # that the operation has written records into

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for tensor, before in reversed(self._before):
            tensor.copy_(before)  # tensors from before the pass are unchanged

    def require_same_for_all(self, func: Any, value: Tensor, owners: Tensor) -> None:
        """Report a constant whose values depend on a record's position in the batch."""
        # Random numbers may differ until their owners are known.
        if value.numel() <= 1 or not self.is_settled(value) or hasattr(value, OWNED):
            return
        if not same_for_all(value, owners, self.records):
            self.note("place", func, "numbers that differ from record to record")

    def require_same_places(self, func: Any, places: Tensor, owners: Tensor) -> None:
        """Report indices or positions that differ from record to record."""
        if not same_for_all(places, owners, self.records):
            self.note("place", func, "places that differ from record to record")

    def _assign(self, call: Call, owners: Any, finding: Finding | None) -> None:
        origin = finding
        for tensor in call.tensors():
            known = self.owned(tensor)
            if origin is None and known is not None:
                origin = known.origin
        # Batch norm writes to its statistics, which its schema does not declare.
        written = (*written_by(call.func), *call.written)
        sources = list(call.tensors())
        flat = list(tensors_among((call.outputs,)))
        found = list(owners_in(owners))
        changed = {id(call.given[name]) for name in written if name in call.given}
        for tensor, of in zip(flat, found, strict=True):
            if id(tensor) in changed:
                continue
            if of is None:
                of = everywhere(tensor.ndim, MIXED)
            self._register(tensor, sources)
            if self._has_place(call, of):
                of = everywhere(tensor.ndim, MIXED)
                origin = origin or self.by_place(call.func)
            of = filled_rows(of, self.records)
            self.own(tensor, of, self._origin(call, of, origin))
        for place, name in enumerate(written):
            target = call.given.get(name)
            if not isinstance(target, Tensor) or name in call.untouched:
                continue
            whose = call.written.get(name)
            if whose is None:
                whose = found[place] if place < len(found) else None
            if whose is None:
                whose = everywhere(target.ndim, MIXED)
            if torch.Tag.inplace_view in call.func.tags:  # other axes, the same values
                self.own(target, whose, self._origin(call, whose, origin))
                continue
            self._require_own(call.func, target, "records")
            self._require_unseen(call.func, target)
            if self._has_place(call, whose):
                whose = everywhere(target.ndim, MIXED)
                origin = origin or self.by_place(call.func)
            self._write(target, whose, self._origin(call, whose, origin), call.func)

    def _has_place(self, call: Call, owners: Tensor) -> bool:
        """Whether a result depends on positions in the batch.

        It does if it is computed from some records only, or has their elements in other patterns.
        """
        if not self.together or not 1 < self.records <= _FEW:
            return False
        if owners.numel() < self.records:
            whose = owners.flatten().tolist()
            some = any(FREE < owner < MIXED for owner in whose)
            return some and call.func.overloadpacket not in MOVING
        return not even(owners, self.records)

    def by_place(self, func: Any) -> Finding:
        """The finding for a result that depends on positions in the batch."""
        return self.found("place", func, "some records and not others")

    def _origin(self, call: Call, owners: Tensor, origin: Finding | None) -> Finding | None:
        if not bool((owners == MIXED).any()):
            return None
        return origin or self.note("mixes", call.func)

    def _require_own(self, func: Any, tensor: Tensor, detail: str) -> None:
        """Report a write to a tensor from before the pass, which outlives it."""
        if tensor.numel() and not self.is_new(tensor):
            self.note("writes", func, detail)
            if not isinstance(tensor, FakeTensor):
                self._before.append((tensor.detach(), tensor.detach().clone()))

    def _write(
        self, tensor: Tensor, owners: Tensor, origin: Finding | None, func: Any = None
    ) -> None:
        """Update the owners of a tensor that was changed in place, and of those in its memory."""
        others = [
            other for other in self._looking_at(tensor) if other is not tensor and other.numel()
        ]
        if not others or not tensor.numel():
            self.own(tensor, owners, origin)
            return
        memory = self.memory(tensor)
        for other in others:
            origin = origin or getattr(getattr(other, OWNED, None), "origin", None)
        before = [self.owners(other) for other in others]
        memory.as_strided(*place_in_memory(tensor)).copy_(owners.expand(tensor.shape))
        self.own(tensor, owners, origin)
        places = None
        if func is not None and self.together and 1 < self.records <= _FEW:
            places = torch.zeros(memory.shape, dtype=torch.bool, device="cpu")
            places.as_strided(*place_in_memory(tensor)).fill_(True)
        for other, was in zip(others, before, strict=True):
            now = squeezed(memory.as_strided(*place_in_memory(other))).contiguous()
            if not hasattr(other, OWNED):
                if bool((now == FREE).all()):
                    continue  # still a constant with known values
                if not isinstance(other, FakeTensor):
                    self._beside(func, other, now)
            self.own(other, filled_rows(now, self.records), origin)
            if places is not None:
                written = squeezed(places.as_strided(*place_in_memory(other)))
                self._require_even_write(func, written, torch.where(was == FREE, now, was), now)

    def _beside(self, func: Any, constant: Tensor, now: Tensor) -> None:
        """Compare the values of a constant tensor that records are now written into."""
        value = torch.where(now == FREE, constant.detach(), constant.new_zeros(()))
        known = value if self.is_settled(constant) else None
        number, random = len(self._memories), hasattr(constant, RANDOM)
        form = tuple(constant.shape)
        self._memories.append(Constant("memory", number, form, known, random, False))
        if func is None or known is None:
            return
        if not same_for_all(value, filled_rows(now, self.records), self.records):
            self.note("place", func, "numbers that differ from record to record")

    def _require_even_write(self, func: Any, written: Tensor, whose: Tensor, now: Tensor) -> None:
        """Report a write to different positions for different records."""
        if not same_for_all(written, whose, self.records) or not even(now, self.records):
            self.note("place", func, "other places of one record than of another")
