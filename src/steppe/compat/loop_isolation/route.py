"""How the loss of a batch comes about, as one number: in every step, whether it is followed or not.

The tensors of a batch, and what is made from them, are of a class (`Followed`) that torch asks
before each call with one of them. Each result is given a hash of the function, of the hashes of the
tensors that it took, and of the arguments that say what is done. The hash of the loss and those of
the module's arguments are the *route* of the batch. What does not lead to the loss, such as an
accuracy for logs, has no part in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from steppe.compat.loop_isolation.reads import READ, read
from steppe.compat.loop_isolation.refusals import holds_read_number
from steppe.compat.loop_isolation.totals import ALL, FOLLOW, ROUTE
from steppe.compat.loop_isolation.untracked import Shared, numbers_of
from steppe.isolation import line_of_user
from steppe.utils.batches import tensors_in

Number = tuple[float | None, bool]
"""A number that an operation was given, and whether values had been read from the batch before."""


class Followed(Tensor):
    """A tensor made from the records of a batch, until that is stepped."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            route: Route | None = None
            if args and type(args[0]) is Followed:  # as nearly always
                route = args[0].__dict__.get(FOLLOW)
            if route is None:
                for tensor in tensors_in((*args, *kwargs.values())):
                    if type(tensor) is Followed and (route := tensor.__dict__.get(FOLLOW)):
                        break
            return func(*args, **kwargs) if route is None else route.call(func, args, kwargs)


class Route:
    """One physical batch on its way through the loop.

    Args:
        records: how many it has.

    Attributes:
        read: where the loop read a value of the batch first; empty if it did not.
        read_before: the same, as it was when `backward()` was called last.
        numbers: those on the way to the losses, in order.
    """

    def __init__(self, records: int) -> None:
        self.records = records
        self.read = self.read_before = ""
        self.numbers: tuple[Number, ...] = ()
        self._shared = Shared()
        self._losses: list[Any] = []
        self._given: list[Any] = []  # to the module
        self._inside: list[Any] = []  # tensors that are plain while the module runs
        self._others: set[str] = set()  # what has a part in the loss and is no operation
        self._known: list[weakref.ref[Tensor]] = []
        self._told: dict[int, tuple[Number, ...]] = {}  # numbers by hash
        self._read_in: set[int] = set()  # hashes of what a read number has a part in
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
        if self._collect(arguments, parts, sources, numbers, SIZE):
            raise holds_read_number("argument")
        way = hash(tuple(parts))
        self._inherit(way, sources, numbers)
        if way in self._read_in:
            raise holds_read_number("argument")
        self._given.append(way)

    def let_in(self, arguments: Sequence[Tensor]) -> None:
        """Make plain tensors of these until `leave`: what the module does is no part of a loop."""
        for tensor in arguments:
            if type(tensor) is Followed:
                tensor.__class__ = Tensor  # type: ignore[assignment]
                self._inside.append(tensor)

    def leave(self, outputs: Sequence[Tensor]) -> None:
        """The module has made this of its arguments."""
        while self._inside:
            self._inside.pop().__class__ = Followed
        for place, tensor in enumerate(outputs):
            if type(tensor) in (Tensor, Followed):
                way = hash((place, self._given[-1]))
                self._lead(tensor, way)
                self._inherit(way, self._given[-1:], [])

    def release(self) -> list[weakref.ref[Tensor]]:
        """Make plain tensors of all again; those that somebody still has."""
        known, self._known, self._inside = self._known, [], []
        self._shared.forget()
        alive = []
        for ref in known:
            tensor = ref()
            if tensor is None:
                continue
            alive.append(ref)
            if type(tensor) is Followed:
                tensor.__class__ = Tensor  # type: ignore[assignment]
            kept = tensor.__dict__
            for name in ALL:
                kept.pop(name, None)
        return alive

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One call of torch with a tensor of this route."""
        kind = KNOWN.get(func) or kind_of(func)
        if kind.reads or (kind.cuts and decides_size(func, args)):
            self.read = self.read or line_of_user() or "torch"
            if getattr(func, "__name__", "") in SHARES:
                self._shared.note(args[0])
        elif kind.other:
            self._others.add(kind.other)
        elif kind.back:
            self._go_back(args, kwargs)
        made = self.run(func, args, kwargs)
        if kind.copies or kind.reads:
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
        was_read = self._collect(args, parts, sources, numbers, kind.whole)
        if kwargs:
            was_read |= self._collect(kwargs, parts, sources, numbers, kind.whole)
        way = hash(tuple(parts))
        if numbers or self._told or self._read_in:
            self._inherit(way, sources, numbers)
        if was_read:
            self._read_in.add(way)
        return way

    def _inherit(self, way: int, sources: Sequence[int], numbers: Sequence[Number]) -> None:
        """What has a part in the sources has a part in what was made of them."""
        if (self._told or numbers) and way not in sources:
            told = [number for source in sources for number in self._told.get(source, ())]
            if told or numbers:
                self._told[way] = (*told, *numbers)
        if self._read_in and not self._read_in.isdisjoint(sources):
            self._read_in.add(way)

    def _collect(
        self,
        values: Any,
        parts: list[Any],
        sources: list[int],
        numbers: list[Number],
        whole: int,
    ) -> bool:
        """Note what a nest of arguments says; whether a number in it was read."""
        was_read = False
        if isinstance(values, dict):
            parts.extend(values)
            values = values.values()
        for value in values:
            kind = type(value)
            if kind is Followed:
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
                if self.read:
                    numbers += [(one, True) for one in numbers_of(value, self.records)]
                parts.append(kind)
            elif kind in (tuple, list, dict):
                inner: list[Any] = []
                was_read |= self._collect(value, inner, sources, numbers, whole)
                # A list may have an entry for each record.
                if len(inner) > 1:
                    inner = [one for i, one in enumerate(inner) if not i or one != inner[i - 1]]
                parts.append(tuple(inner))
            elif kind is slice:
                ends = (value.start, value.stop, value.step)
                was_read |= any(type(end) in READ for end in ends)
                parts.append(tuple(end is None for end in ends))
            elif kind in READ:
                was_read = True
            elif kind is not torch.Size:
                parts.append(kind)
        return was_read

    def _go_back(self, args: Any, kwargs: dict[str, Any]) -> None:
        self._shared.require_unwritten()
        for loss in tensors_in((*args[:1], kwargs.get("tensors"))):
            if type(loss) is Followed:
                way = self._at(loss)
                if way in self._read_in:
                    raise holds_read_number("loss")
                self._losses.append(way)
                self.numbers += self._told.get(way, ())
        if len(args) > 1 or any(kwargs.get(name) is not None for name in _WEIGHTS):
            self._others.add("gradient")
        self.read_before = self.read


def as_plain(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copies, texts and saved files know nothing of what is followed."""
    tensor = args[0]
    if type(tensor) is not Followed:
        return func(*args, **kwargs)
    kept = {key: vars(tensor).pop(key) for key in ALL if key in vars(tensor)}
    tensor.__class__ = Tensor  # type: ignore[assignment]
    try:
        return func(*args, **kwargs)
    finally:
        tensor.__class__ = Followed
        vars(tensor).update(kept)


_OF_NUMPY = (np.ndarray, np.floating, np.integer)
_WEIGHTS = ("gradient", "grad_tensors")  # what `backward()` may be given beside a loss
