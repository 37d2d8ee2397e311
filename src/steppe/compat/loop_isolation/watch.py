"""The watch of a user's loop.

Records may meet once: in a last sum or mean, with weights that no record decides. What comes out is
a *total*. Totals may be added up and scaled by constants, and nothing else may be done to them on
the way to `backward()`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe.compat.loop_isolation.refusals import DIVIDES, cut_by_records, decides
from steppe.compat.loop_isolation.totals import (
    KEPT,
    LEAF,
    MOVED,
    TOTAL,
    Total,
    all_alike,
    has_mixed,
    is_arange,
    kept_of,
    leaf_of,
)
from steppe.isolation import (
    MIXED,
    OWNED,
    Finding,
    Watch,
    aligned,
    axes_of,
    by_name,
    everywhere,
    join,
    joined_over,
    on_axis,
    rule_of,
    storage_of,
    tensors_among,
    without,
    written_by,
)


class LoopWatch(Watch):
    """A watch that knows totals, labels that are left out, and where a tensor of the batch went."""

    def __init__(
        self,
        records: int,
        fake: FakeTensorMode | None,
        layer: Callable[[], str | None],
        kept: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(records, rule_of, fake, layer)
        self.values: list[float] = []  # that Python has read
        self.lengths: set[int] = set()  # whole numbers that were read, one by one or in lists
        self.constants: list[tuple[Any, ...]] = []  # operations with the numbers that they took
        self.factors: list[float] = []  # by which totals were scaled
        self._divides = False
        self._generators = generators()
        self._places = {storage_of(tensor)._cdata for tensor in kept}

    @property
    def exported(self) -> bool:
        """Whether values went where nothing can follow them."""
        return any(finding.detail == EXPORTED for finding in self.reads)

    def is_random(self) -> bool:
        """Whether numbers that nobody made known may be random: some were drawn meanwhile."""
        return not self.exported and generators() != self._generators

    def note(self, kind: str, func: Any, detail: str = "") -> Finding:
        """As `Watch.note`; random numbers may differ from record to record."""
        if kind == "mixes" and self._divides:
            detail = DIVIDES
        finding = super().note(kind, func, detail)
        if kind == "place" and self.is_random():
            self.findings.pop()
        return finding

    def _require_own(self, func: Any, tensor: Tensor, detail: str) -> None:
        """State of the module must not be written; what a loop keeps for its logs may."""
        if detail and storage_of(tensor)._cdata in self._places:
            self.note("writes", func, detail)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = by_name(func, args, kwargs or {})
        followed = any(hasattr(tensor, OWNED) for tensor in tensors_among(given.values()))
        if not followed:
            return super().__torch_dispatch__(func, types, args, kwargs)
        name = func.overloadpacket.__name__.rstrip("_")
        decides = torch.Tag.dynamic_output_shape in func.tags or name in ("index", "index_put")
        decided = decides and self._decided(name, given)
        self._require_own_lengths(func, name, given)
        self._divides = False
        total, leaf, kept = self._total_of(name, given), leaf_of(name, given), kept_of(name, given)
        self._require_known_origin(func, name, given)
        of_totals = any(hasattr(tensor, TOTAL) for tensor in tensors_among(given.values()))
        if not of_totals:  # what scales those is looked at by itself
            self._note_numbers(func, given)
        outputs = super().__torch_dispatch__(func, types, args, kwargs)
        if name == "_local_scalar_dense":
            self._require_no_decision(outputs)
            if not has_mixed(self.owners(given["self"])):  # of one record: perhaps in a list of all
                self.reads.append(self.found("reads", func, EXPORTED))
            self.values.append(float(outputs) if not isinstance(outputs, complex) else 0.0)
            self.note_lengths(outputs)
            return outputs
        made = list(tensors_among((outputs,)))
        for key in written_by(func):
            for tensor in self._looking_at(given[key]) if key in given else ():
                for told in (LEAF, KEPT, TOTAL):
                    vars(tensor).pop(told, None)
        if decided:
            finding = super().note("mixes", func)
            for tensor in made:
                self.own(tensor, everywhere(tensor.ndim, MIXED), finding)
            total = None
        for place, tensor in enumerate(made):
            for key, value in ((LEAF, leaf), (KEPT, kept)):
                if value is not None:
                    setattr(tensor, key, value)
                elif hasattr(tensor, key):
                    delattr(tensor, key)
            self._mark_total(tensor, total if place == 0 else None)
        return outputs

    def note_lengths(self, values: Any) -> None:
        """Whole numbers that Python has read, which could be the length of the longest record."""
        if isinstance(values, (list, tuple)):
            for value in values:
                self.note_lengths(value)
        elif type(values) is int and values > 2 and values != self.records:
            self.lengths.add(values)

    def _require_own_lengths(self, func: Any, name: str, given: dict[str, Any]) -> None:
        """Refuse to cut rows at a length that was read off records."""
        if name not in _CUTS or not self.lengths:
            return
        sizes = set(_whole(given.get(key) for key in _CUTS[name]))
        if self.lengths & (sizes - set(given["self"].shape)):
            raise cut_by_records(super().note("reads", func, "Python reads a value"))

    def _note_numbers(self, func: Any, given: dict[str, Any]) -> None:
        whole = torch.Tag.pointwise in func.tags
        found = [
            float(value)
            for value in given.values()
            if type(value) is float or (whole and type(value) is int)
        ]
        for value in given.values():
            if isinstance(value, Tensor) and not value.ndim and not hasattr(value, OWNED):
                found.append(float(value.detach()))
        if found:
            self.constants.append((func.overloadpacket, *found))

    def _require_known_origin(self, func: Any, name: str, given: dict[str, Any]) -> None:
        """Note numbers by record that came from elsewhere: from what was read, perhaps."""
        if name.startswith("nll_loss") and not hasattr(given["target"], OWNED):
            rows = on_axis(given["target"].ndim, 0, self.records)
            if given["target"].shape[:1] == (self.records,):
                self.require_same_for_all(func, given["target"], rows)
        if not self.exported or self._fake is not None:
            return
        for tensor in tensors_among(given.values()):
            axes = [axis for axis, size in enumerate(tensor.shape) if size == self.records]
            if hasattr(tensor, OWNED) or not axes or is_arange(tensor):
                continue
            self.require_same_for_all(func, tensor, on_axis(tensor.ndim, axes[0], self.records))

    def _mark_total(self, tensor: Tensor, total: Total | None) -> None:
        known = self.owned(tensor)
        if total is not None and known is not None and has_mixed(known.owners):
            setattr(tensor, TOTAL, total)
            self.own(tensor, known.owners)  # without what mixed it: it may be so
        elif hasattr(tensor, TOTAL):
            delattr(tensor, TOTAL)

    def _decided(self, name: str, given: dict[str, Any]) -> bool:
        """Whether values of records decide how much comes out."""
        if name not in ("index", "index_put"):
            return True
        masks = [i for i in given["indices"] if i is not None and i.dtype == torch.bool]
        return name == "index" and any(hasattr(mask, OWNED) for mask in masks)

    def _require_no_decision(self, value: Any) -> None:
        if isinstance(value, bool) and self._fake is None:
            raise decides(super().note("reads", None, "Python reads a value"))

    # Totals

    def isolated(self, *tensors: Tensor) -> bool:
        """Whether no element is made from several records."""
        return not any(has_mixed(self.owners(tensor)) for tensor in tensors)

    def _total_of(self, name: str, given: dict[str, Any]) -> Total | None:
        tensors = list(tensors_among(given.values()))
        if any(hasattr(tensor, TOTAL) for tensor in tensors):
            return self._of_totals(name, given, tensors)
        if name in ("sum", "mean", "nansum"):
            return self._reduced(name, given)
        if name in _COMPARED:
            return self._compared(given, tensors)
        if name in ("nll_loss_forward", "nll_loss2d_forward"):
            return self._of_classes(given)
        return None

    def _reduced(self, name: str, given: dict[str, Any]) -> Total | None:
        tensor = given["self"]
        owners = self.owners(tensor)
        if not self.isolated(tensor) or not all_alike(owners, self.records):
            return None
        count = 1
        for axis in axes_of(given.get("dim"), tensor.ndim):
            count *= tensor.shape[axis]
        return Total((1 / max(1, count) if name == "mean" else 1.0,))

    def _compared(self, given: dict[str, Any], tensors: list[Tensor]) -> Total | None:
        axes = max(tensor.ndim for tensor in tensors)
        owners = join([aligned(self.owners(tensor), axes) for tensor in tensors])
        if given.get("reduction") == 0 or has_mixed(owners):
            return None
        if not all_alike(owners, self.records):
            return None
        count = torch.broadcast_shapes(*[tuple(t.shape) for t in tensors]).numel()
        return Total((1.0 if given.get("reduction") == 2 else 1 / max(1, count),))

    def _of_classes(self, given: dict[str, Any]) -> Total | None:
        x, target = given["self"], given["target"]
        reduction = given.get("reduction", 1)
        axis = 1 if x.ndim > 1 else 0
        over = without(joined_over(self.owners(x), [axis]), [axis])
        owners = join([over, aligned(self.owners(target), over.ndim)])
        if reduction == 0 or has_mixed(owners) or not all_alike(owners, self.records):
            return None
        if reduction == 2:
            return Total((1.0,))
        leaf, ignored = getattr(target, LEAF, None), int(given.get("ignore_index", -100))
        scale = 1 / max(1, target.numel())
        if given.get("weight") is None and leaf is not None:
            return Total((scale,), frozenset(((leaf, ignored),)))
        constant = not hasattr(target, OWNED) and not bool((target == ignored).any())
        if given.get("weight") is None and constant:  # as for the made-up rows of a discriminator
            return Total((scale,))
        self._divides = True
        return None

    def _of_totals(self, name: str, given: dict[str, Any], tensors: list[Tensor]) -> Total | None:
        first: Any = given.get("self", given.get("tensors"))
        total: Total | None = getattr(first, TOTAL, None)
        other = given.get("other")
        if name in _SAME:
            return total
        if name in ("sum", "mean") and total is not None:
            count = 1
            for axis in axes_of(given.get("dim"), first.ndim):
                count *= first.shape[axis]
            return total.times(1 / max(1, count) if name == "mean" else 1.0)
        if name == "neg" and total is not None:
            return total.times(-1.0)
        if name in ("mul", "div") and given.get("rounding_mode") is None:
            return self._scaled(name, first, other)
        if name in ("add", "sub", "rsub"):
            factor = float(given.get("alpha", 1)) * (-1.0 if name != "add" else 1.0)
            return self._added([(first, 1.0), (other, factor)])
        if name in ("stack", "cat"):
            return self._added([(part, 1.0) for part in given["tensors"]])
        return None

    def _scaled(self, name: str, one: Any, other: Any) -> Total | None:
        total = getattr(one, TOTAL, None)
        if total is None:
            one, other = other, one
            total = getattr(one, TOTAL, None)
            if name == "div" or total is None:
                return None
        count = getattr(other, KEPT, None)
        if name == "div" and count is not None and count[0] == "count":
            return Total(total.times(1 / max(1, count[2])).scales, total.guards | {count[1]})
        if hasattr(other, OWNED):
            return None
        if isinstance(other, Tensor):
            factor = float(other.detach()) if other.numel() == 1 else 1.0
        else:
            factor = float(other)
        self.factors.append(factor)
        return total.times(factor if name == "mul" else 1 / factor if factor else 0.0)

    def _added(self, parts: list[tuple[Any, float]]) -> Total | None:
        found: Total | None = None
        for part, factor in parts:
            total = getattr(part, TOTAL, None)
            if total is None:
                if hasattr(part, OWNED):
                    return None
                continue
            total = total.times(factor)
            found = total if found is None else found.plus(total)
        return found


def _whole(values: Any) -> Iterator[int]:
    """All whole numbers in a nest."""
    for value in values:
        if type(value) is int:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _whole(value)


def generators() -> tuple[Any, ...]:
    """Where the generators are that a loop may draw from."""
    state: Any = np.random.get_state(legacy=False)
    accelerators: tuple[bytes, ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        accelerators = tuple(s.numpy().tobytes() for s in torch.cuda.get_rng_state_all())
    return (
        torch.default_generator.get_state().numpy().tobytes(),
        random.getstate(),
        str(state),
        accelerators,
    )


_CUTS = {
    "slice": ("start", "end"),
    "narrow": ("start", "length"),
    "split": ("split_size",),
    "split_with_sizes": ("split_sizes",),
}  # operations that cut, and the arguments that say where

EXPORTED = "values that leave torch"

_COMPARED = frozenset(
    (
        "mse_loss",
        "huber_loss",
        "smooth_l1_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "l1_loss",
    )
)

_SAME = MOVED - {"cat", "constant_pad_nd"}
