"""How the loss of a batch comes about, as one number: in every step, whether it is followed or not.

The tensors of a batch, and what is made from them, are `Followed`. Each result is given a hash of
the function, of the hashes of the tensors that it took, and of the arguments that say what is done.
The hash of the loss and those of the module's arguments are the *route* of the batch. What does not
lead to the loss, such as an accuracy for logs, has no part in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.compat.loop_isolation.followed import Followed, as_plain
from steppe.compat.loop_isolation.kinds import (
    COPIES,
    ITEM,
    KNOWN,
    NUMBER,
    SAYING,
    SAYS,
    SHARES,
    SIZE,
    Kind,
    decides_size,
    kind_of,
    writes_by,
)
from steppe.compat.loop_isolation.past import Past
from steppe.compat.loop_isolation.reads import READ, read
from steppe.compat.loop_isolation.refusals import holds_earlier, holds_inner, holds_read_number
from steppe.compat.loop_isolation.totals import FOLLOW, ROUTE
from steppe.compat.loop_isolation.untracked import Shared, numbers_of
from steppe.gradients import is_marked
from steppe.isolation import line_of_user
from steppe.utils.batches import tensors_in

Number = tuple[float | None, bool]
"""A number that an operation was given, and whether values had been read from the batch before."""


class Route:
    """One physical batch on its way through the loop.

    Args:
        records: how many it has.
        past: knows what is left of earlier batches.

    Attributes:
        read: where the loop read a value of the batch first; empty if it did not.
        read_before: the same, as it was when `backward()` was called last.
        numbers: those on the way to the losses, in order.
    """

    is_over = False

    def __init__(self, records: int, past: Past) -> None:
        self.records = records
        self._past = past
        self.read = self.read_before = ""
        self.numbers: tuple[Number, ...] = ()
        self._shared = Shared()
        self._losses: list[Any] = []
        self._given: list[Any] = []  # to the module
        self._inside: list[Any] = []  # tensors that are plain while the module runs
        self._others: set[str] = set()  # what has a part in the loss and is no operation
        self._known: list[weakref.ref[Tensor]] = []
        self._told: dict[int, tuple[Number, ...]] = {}  # numbers by hash
        self._barred: dict[int, str] = {}  # by hash: what must have no part in the gradients
        self._written: dict[int, tuple[Any, int]] = {}  # by memory: that memory, and the hash

    @property
    def key(self) -> int:
        """The route as one number."""
        return hash((tuple(self._losses), tuple(self._given), frozenset(self._others)))

    @property
    def computes_after_read(self) -> bool:
        """Whether a number on the way to the losses was given after values had been read."""
        return any(after_read for _, after_read in self.numbers)

    def start(self, places: dict[Any, Tensor]) -> None:
        """Begin at the tensors of a batch, by place."""
        for place, tensor in places.items():
            if type(tensor) in (Tensor, Followed):
                self._lead(tensor, hash(place))

    def enter(self, arguments: Any) -> None:
        """The loop gives this to the module."""
        self._shared.require_unwritten()
        parts: list[Any] = []
        sources: list[int] = []
        numbers: list[Number] = []
        barred = self._collect(arguments, parts, sources, numbers, SIZE)
        way = hash(tuple(parts))
        self._inherit(way, sources, numbers)
        _require_none("argument", barred or self._barred.get(way, ""))
        self._given.append(way)

    def let_in(self, arguments: Sequence[Tensor]) -> None:
        """Make plain tensors of these until `leave`: what the module does is no part of a loop."""
        for tensor in arguments:
            if type(tensor) is Followed:
                tensor.__class__ = Tensor  # type: ignore[assignment]
                self._inside.append(tensor)

    def leave(self, outputs: Sequence[Tensor], shown: str) -> None:
        """The module has made this of its arguments.

        Args:
            outputs: its tensors.
            shown: by what the module may have shown other values to the loop; empty for nothing.
        """
        self.read = self.read or shown
        while self._inside:
            self._inside.pop().__class__ = Followed
        for place, tensor in enumerate(outputs):
            if type(tensor) in (Tensor, Followed):
                way = hash((place, self._given[-1]))
                self._lead(tensor, way)
                self._inherit(way, self._given[-1:], [])

    def release(self) -> None:
        """Leave all that somebody still has to the past."""
        known, self._known, self._inside = self._known, [], []
        self._shared.forget()
        for ref in known:
            if (tensor := ref()) is not None:
                self._past.take(tensor)
        for memory, _ in self._written.values():
            self._past.note_written(memory)

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One call of torch with a tensor of this route."""
        kind = KNOWN.get(func) or kind_of(func)
        if kind.reads or (kind.cuts and decides_size(func, args)):
            self.read = self.read or line_of_user() or "torch"
            if getattr(func, "__name__", "") in SHARES:
                self._shared.note(args[0])
        elif kind.other:
            self._others.add(kind.other)
        elif has_saved_hooks():
            self._others.add("saved_tensors_hooks")
        elif kind.back:
            self._go_back(args, kwargs)
        made = self.run(func, args, kwargs)
        if kind.reads or (kind.copies and func is not Tensor.__deepcopy__):
            return read(made) if func is ITEM else made
        found = type(made)
        if found is Tensor or found is Followed:
            way = self._way_of(kind, func, args, kwargs)
            if kind.writes or (kwargs and writes_by(kwargs)):
                self._write(made, way)
            else:
                self._lead(made, way)
        elif found is torch.Size:
            pass
        elif isinstance(made, (tuple, list)):
            self._lead_all(made, self._way_of(kind, func, args, kwargs), kind)
        elif kind.writes:  # `x[...] = value` gives nothing back
            self._write(args[0], self._way_of(kind, func, args, kwargs))
        return made

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The call itself."""
        return as_plain(func, args, kwargs) if func in COPIES else func(*args, **kwargs)

    def _lead(self, tensor: Tensor, way: int) -> None:
        kept = tensor.__dict__
        kept[ROUTE] = way
        if kept.get(FOLLOW) is not self:
            kept[FOLLOW] = self
            self._known.append(weakref.ref(tensor))
        tensor.__class__ = Followed

    def _lead_all(self, made: Any, way: int, kind: Kind) -> None:
        for place, tensor in enumerate(tensors_in(made)):
            if type(tensor) in (Tensor, Followed):
                # Parts of one tensor may be as many as records: all of them are alike.
                one = way if kind.parts else hash((place, way))
                self._lead(tensor, one)
                self._inherit(one, (way,), ())

    def _write(self, tensor: Any, way: int) -> None:
        """All that look at this memory have come another way from now on."""
        if type(tensor) is Tensor:
            self._lead(tensor, 0)
        memory = tensor.untyped_storage()
        self._written[memory._cdata] = memory, way

    def _at(self, tensor: Tensor) -> int:
        way: int = tensor.__dict__.get(ROUTE, 0)
        if self._written:
            written = self._written.get(tensor.untyped_storage()._cdata)
            if written is not None:
                before, way = way, hash((way, written[1]))
                self._inherit(way, (before, written[1]), ())
        return way

    def _way_of(self, kind: Kind, func: Any, args: Any, kwargs: dict[str, Any]) -> int:
        parts: list[Any] = [kind.name]
        sources: list[int] = []
        numbers: list[Number] = []
        barred = self._collect(args, parts, sources, numbers, kind.whole)
        if kwargs:
            given = kind.given(kwargs)
            barred = self._collect(given, parts, sources, numbers, kind.whole) or barred
        way = hash(tuple(parts))
        if numbers or self._told or self._barred:
            self._inherit(way, sources, numbers)
        if barred:
            self._barred[way] = barred
        return way

    def _inherit(self, way: int, sources: Sequence[int], numbers: Sequence[Number]) -> None:
        """What has a part in the sources has a part in what was made of them."""
        if (self._told or numbers) and way not in sources:
            told = [number for source in sources for number in self._told.get(source, ())]
            if told or numbers:
                self._told[way] = (*told, *numbers)
        if self._barred:
            for source in sources:
                if source in self._barred:
                    self._barred[way] = self._barred[source]

    def _collect(
        self,
        values: Any,
        parts: list[Any],
        sources: list[int],
        numbers: list[Number],
        whole: int,
    ) -> str:
        """Note what a nest of arguments says; what in it must have no part in the gradients."""
        barred = ""
        if isinstance(values, dict):
            parts.extend(values)
            values = values.values()
        for value in values:
            kind = type(value)
            if kind is Followed:
                if value.__dict__.get(FOLLOW) is not self:
                    barred = _EARLIER
                way = self._at(value)
                parts.append(way)
                sources.append(way)
            elif kind in SAYING:
                parts.append(value)
            elif kind is int:
                if whole == SAYS:  # no axis has a large number
                    parts.append(value if -8 <= value < 8 else kind)
                elif whole == NUMBER:
                    numbers.append((float(value), bool(self.read)))
            elif kind is float:
                numbers.append((value, bool(self.read)))
            elif kind is Tensor or isinstance(value, _OF_NUMPY):
                if kind is Tensor:
                    barred = self._of_plain(value) or barred
                if self.read:
                    numbers += [(one, True) for one in numbers_of(value, self.records)]
                parts.append((kind, kind is Tensor and value.requires_grad))
            elif kind in (tuple, list, dict):
                inner: list[Any] = []
                barred = self._collect(value, inner, sources, numbers, whole) or barred
                # A list may have an entry for each record.
                if len(inner) > 1:
                    inner = [one for i, one in enumerate(inner) if not i or one != inner[i - 1]]
                parts.append(tuple(inner))
            elif kind is slice:
                ends = (value.start, value.stop, value.step)
                if any(type(end) in READ for end in ends):
                    barred = _READ
                parts.append(tuple(end is None for end in ends))
            elif kind in READ:
                barred = _READ
            elif kind is not torch.Size:
                parts.append(kind)
                if isinstance(value, Tensor):  # a weight or buffer
                    parts.append(value.requires_grad)
                    barred = self._of_plain(value) or barred
        return barred

    def _of_plain(self, tensor: Tensor) -> str:
        """What bars a tensor that is not followed."""
        if is_marked(tensor):
            return _INSIDE
        return _EARLIER if self._past.holds(tensor) else ""

    def _go_back(self, args: Any, kwargs: dict[str, Any]) -> None:
        self._shared.require_unwritten()
        for loss in tensors_in((*args[:1], kwargs.get("tensors"))):
            if type(loss) is Followed:
                way = self._at(loss)
                _require_none("loss", self._barred.get(way, ""))
                self._losses.append(way)
                self.numbers += self._told.get(way, ())
        if len(args) > 1 or any(kwargs.get(name) is not None for name in _WEIGHTS):
            self._others.add("gradient")
        self.read_before = self.read


def has_saved_hooks() -> bool:
    """Whether code of the user's is called with each tensor that is kept for the way back."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _require_none(where: str, barred: str) -> None:
    if barred:
        raise _REFUSALS[barred](where)


_READ, _EARLIER, _INSIDE = "read", "of an earlier batch", "from inside of the module"
_REFUSALS = {_READ: holds_read_number, _EARLIER: holds_earlier, _INSIDE: holds_inner}
_OF_NUMPY = (np.ndarray, np.floating, np.integer)
_WEIGHTS = ("gradient", "grad_tensors")  # what `backward()` may be given beside a loss
