"""Follow the operations of a user's own loop, from a drawn batch to its `backward()`.

No mode of torch is left on while the loop runs: whatever ends or leaves the loop, nothing stays
behind. The tensors of the batch tell of themselves instead. They are of a class (`Followed`) that
torch asks before each call with one of them; the call is then made under a `Watch`, and so are all
calls with its results. `release` makes plain tensors of them again.

Records may meet once: in a last sum or mean, with weights that no record decides. What comes out is
a *total*. Totals may be added up and scaled by constants, and nothing else may be done to them on
the way to `backward()`.
"""

from __future__ import annotations

import math
import random
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe._global_seeds import global_seeds_kept
from steppe.clipping.batches import each, tensors_in
from steppe.clipping.contact import Capture
from steppe.clipping.tracing import mark
from steppe.errors import IsolationError
from steppe.isolation import refusals
from steppe.isolation.owners import FREE, MIXED, everywhere, join, joined_over, on_axis
from steppe.isolation.proof import _attributes_kept
from steppe.isolation.rules import rule_of
from steppe.isolation.rules.arguments import aligned, axes_of, without
from steppe.isolation.trace import _Follower, _plain_operations, _quiet
from steppe.isolation.watch import (
    _OWNED,
    _RANDOM,
    Finding,
    NotIsolated,
    Owned,
    Watch,
    _by_name,
    _storage,
    _tensors,
    _written,
)
from steppe.isolation.where import Layers, line_of_user

_LEAF = "_steppe_leaf"
_TOTAL = "_steppe_total"
_KEPT = "_steppe_kept"
_FOLLOW = "_steppe_follow"
_ALL = (_OWNED, _RANDOM, _LEAF, _TOTAL, _KEPT, _FOLLOW)

Path = tuple[Any, ...]
Guard = tuple[Path, int]
"""A tensor of the batch, and a label that must not be in it."""


@dataclass(frozen=True)
class Total:
    """A sum over all records, each with the same weight.

    Attributes:
        scales: what each of the sums that were added up is multiplied by.
        guards: labels that must not occur for this to hold.
    """

    scales: tuple[float, ...]
    guards: frozenset[Guard] = frozenset()

    def times(self, factor: float) -> Total:
        """Scaled by a constant."""
        return Total(tuple(scale * factor for scale in self.scales), self.guards)

    def guarded(self, guards: frozenset[Guard]) -> Total:
        """The same under more conditions."""
        return Total(self.scales, self.guards | guards)

    def plus(self, other: Total) -> Total:
        """Added up."""
        return Total((*self.scales, *other.scales), self.guards | other.guards)


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
        self.factors: list[float] = []  # by which totals were scaled
        self._divides = False
        self._generators = generators()
        self._places = {_storage(tensor)._cdata for tensor in kept}

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
            detail = _DIVIDES
        finding = super().note(kind, func, detail)
        if kind == "place" and self.is_random():
            self.findings.pop()
        return finding

    def _require_own(self, func: Any, tensor: Tensor, detail: str) -> None:
        """State of the module must not be written; what a loop keeps for its logs may."""
        if detail and _storage(tensor)._cdata in self._places:
            self.note("writes", func, detail)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = _by_name(func, args, kwargs or {})
        followed = any(hasattr(tensor, _OWNED) for tensor in _tensors(given.values()))
        if not followed:
            return super().__torch_dispatch__(func, types, args, kwargs)
        name = func.overloadpacket.__name__.rstrip("_")
        decides = torch.Tag.dynamic_output_shape in func.tags or name in ("index", "index_put")
        decided = decides and self._decided(name, given)
        self._divides = False
        total, leaf, kept = self._total_of(name, given), _leaf_of(name, given), _kept(name, given)
        self._require_known_origin(func, name, given)
        of_totals = any(hasattr(tensor, _TOTAL) for tensor in _tensors(given.values()))
        numbers = len(self.numbers)
        outputs = super().__torch_dispatch__(func, types, args, kwargs)
        if of_totals:  # what scales them is looked at by itself
            del self.numbers[numbers:]
        if name == "_local_scalar_dense":
            self._require_no_decision(outputs)
            self.values.append(float(outputs) if not isinstance(outputs, complex) else 0.0)
            return outputs
        made = list(_tensors((outputs,)))
        for key in _written(func):
            for tensor in self._looking_at(given[key]) if key in given else ():
                for told in (_LEAF, _KEPT, _TOTAL):
                    vars(tensor).pop(told, None)
        if decided:
            finding = super().note("mixes", func)
            for tensor in made:
                self.own(tensor, everywhere(tensor.ndim, MIXED), finding)
            total = None
        for place, tensor in enumerate(made):
            for key, value in ((_LEAF, leaf), (_KEPT, kept)):
                if value is not None:
                    setattr(tensor, key, value)
                elif hasattr(tensor, key):
                    delattr(tensor, key)
            self._mark_total(tensor, total if place == 0 else None)
        return outputs

    def _require_known_origin(self, func: Any, name: str, given: dict[str, Any]) -> None:
        """Note numbers by record that came from elsewhere: from what was read, perhaps."""
        if name.startswith("nll_loss") and not hasattr(given["target"], _OWNED):
            rows = on_axis(given["target"].ndim, 0, self.records)
            if given["target"].shape[:1] == (self.records,):
                self.require_same_for_all(func, given["target"], rows)
        if not self.exported or self._fake is not None:
            return
        for tensor in _tensors(given.values()):
            axes = [axis for axis, size in enumerate(tensor.shape) if size == self.records]
            if hasattr(tensor, _OWNED) or not axes or _is_arange(tensor):
                continue
            self.require_same_for_all(func, tensor, on_axis(tensor.ndim, axes[0], self.records))

    def _mark_total(self, tensor: Tensor, total: Total | None) -> None:
        known = self.owned(tensor)
        if total is not None and known is not None and has_mixed(known.owners):
            setattr(tensor, _TOTAL, total)
            self.own(tensor, known.owners)  # without what mixed it: it may be so
        elif hasattr(tensor, _TOTAL):
            delattr(tensor, _TOTAL)

    def _decided(self, name: str, given: dict[str, Any]) -> bool:
        """Whether values of records decide how much comes out."""
        if name not in ("index", "index_put"):
            return True
        masks = [i for i in given["indices"] if i is not None and i.dtype == torch.bool]
        return name == "index" and any(hasattr(mask, _OWNED) for mask in masks)

    def _require_no_decision(self, value: Any) -> None:
        if isinstance(value, bool) and self._fake is None:
            raise decides(super().note("reads", None, "Python reads a value"))

    # Totals

    def isolated(self, *tensors: Tensor) -> bool:
        """Whether no element is made from several records."""
        return not any(has_mixed(self.owners(tensor)) for tensor in tensors)

    def _total_of(self, name: str, given: dict[str, Any]) -> Total | None:
        tensors = list(_tensors(given.values()))
        if any(hasattr(tensor, _TOTAL) for tensor in tensors):
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
        if not self.isolated(tensor) or not _all_alike(owners, self.records):
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
        if not _all_alike(owners, self.records):
            return None
        count = torch.broadcast_shapes(*[tuple(t.shape) for t in tensors]).numel()
        return Total((1.0 if given.get("reduction") == 2 else 1 / max(1, count),))

    def _of_classes(self, given: dict[str, Any]) -> Total | None:
        x, target = given["self"], given["target"]
        reduction = given.get("reduction", 1)
        axis = 1 if x.ndim > 1 else 0
        over = without(joined_over(self.owners(x), [axis]), [axis])
        owners = join([over, aligned(self.owners(target), over.ndim)])
        if reduction == 0 or has_mixed(owners) or not _all_alike(owners, self.records):
            return None
        if reduction == 2:
            return Total((1.0,))
        leaf = getattr(target, _LEAF, None)
        if given.get("weight") is not None or leaf is None:
            self._divides = True
            return None
        guard = (leaf, int(given.get("ignore_index", -100)))
        return Total((1 / max(1, target.numel()),), frozenset((guard,)))

    def _of_totals(self, name: str, given: dict[str, Any], tensors: list[Tensor]) -> Total | None:
        first: Any = given.get("self", given.get("tensors"))
        total: Total | None = getattr(first, _TOTAL, None)
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
        total = getattr(one, _TOTAL, None)
        if total is None:
            one, other = other, one
            total = getattr(one, _TOTAL, None)
            if name == "div" or total is None:
                return None
        count = getattr(other, _KEPT, None)
        if name == "div" and count is not None and count[0] == "count":
            return Total(total.times(1 / max(1, count[2])).scales, total.guards | {count[1]})
        if hasattr(other, _OWNED):
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
            total = getattr(part, _TOTAL, None)
            if total is None:
                if hasattr(part, _OWNED):
                    return None
                continue
            total = total.times(factor)
            found = total if found is None else found.plus(total)
        return found


class Followed(Tensor):
    """A tensor made from the records of a batch, while the loop is watched."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        follow: Follow | None = None
        for tensor in tensors_in((*args, *kwargs.values())):
            if type(tensor) is Followed and (follow := getattr(tensor, _FOLLOW, None)) is not None:
                break
        with torch._C.DisableTorchFunctionSubclass():
            if follow is None:
                return func(*args, **kwargs)
            return follow.call(func, args, kwargs)


class Follow:
    """One physical batch on its way through the loop.

    Args:
        records: how many it has.
        module: whose state must not be written in the loop.
        carried: tensors made from the batch before, if they are still there.

    Attributes:
        approve: what is told of every loss that `backward()` is called on.
        watch: knows whose records every tensor is made from.
        losses: the totals that went back so far.
        numbers: those that operations before the totals were given, with the operation.
    """

    def __init__(self, records: int, module: nn.Module, carried: Sequence[Tensor] = ()) -> None:
        state = [*module.parameters(), *module.buffers()]
        self.watch = LoopWatch(records, None, lambda: None, state)
        self.records = records
        self.losses: list[Total] = []
        self.numbers: list[tuple[Any, ...]] = []
        self.approve: Callable[[Total], None] = lambda total: None
        self._stops: list[Any] = []
        self._known: list[weakref.ref[Tensor]] = []
        for tensor in carried:
            if type(tensor) is Tensor:
                whose = Owned(everywhere(tensor.ndim, MIXED), self.watch.number - 1)
                setattr(tensor, _OWNED, whose)
                self._mark(tensor)

    def take(self, batch: Any, path: Path = ()) -> None:
        """Follow the tensors of a batch: records lie on the first axis."""
        for place, tensor in leaves(batch, path):
            if type(tensor) is not Tensor:
                raise IsolationError(
                    f"batch={type(tensor).__name__}: must hold plain tensors to be followed "
                    "through the loop; call as_subclass(torch.Tensor) in collate_fn, or ask for "
                    'isolation="probed".'
                )
            self.watch.adopt(tensor, on_axis(tensor.ndim, 0, self.records))
            setattr(tensor, _LEAF, place)
            self._mark(tensor)

    def take_outputs(self, outputs: Any, whose: Sequence[Tensor]) -> None:
        """Follow what the module made, of which it is known whose it is."""
        for tensor, known in zip(objects_in(outputs), whose, strict=True):
            owned = getattr(known, _OWNED, None)
            if owned is None or type(tensor) is not Tensor:
                continue
            if tensor.grad_fn is not None:
                self._stops.append(tensor.grad_fn)
            self.watch.adopt(tensor, owned.owners)
            self.watch.own(tensor, owned.owners, owned.origin)
            for key in (_TOTAL, _LEAF):
                if hasattr(known, key):
                    setattr(tensor, key, getattr(known, key))
            self._mark(tensor)

    def require_rows(self, tensor: Tensor, axis: int) -> None:
        """Refuse an argument of the module in which row i is not made from record i alone."""
        owned = self.watch.owned(tensor)
        rows = on_axis(tensor.ndim, axis, self.records)
        if owned is None:
            self.watch.require_same_for_all(None, tensor, rows)
            self._require_places()
            return
        if owned.origin is not None:
            raise mixes_before(owned.origin)
        if not bool(((owned.owners == rows) | (owned.owners == FREE)).all()):
            raise IsolationError(
                f"argument={tensor.ndim} axes: row i of what the module gets must be made from "
                "record i of the batch; keep the records in their order in the loop."
            )
        self._require_places()

    def require_no_numbers(self, arguments: Any) -> None:
        """Refuse numbers for the module that were read off records."""
        read = {value for value in self.watch.values if self._is_telling(value)}
        if any(_close(value, number) for value in read for number in numbers_in(arguments)):
            raise IsolationError(
                "argument=a number that was read from records (item() or float()): must not be "
                "given to the module, because it changes the gradients of all; give it a tensor "
                "with an entry for each record, or a constant."
            )

    def require_kept(self) -> None:
        """Refuse what was written to the module's state in the loop."""
        self._require_places()

    def release(self) -> list[Tensor]:
        """Make plain tensors of all again; those that somebody still has."""
        alive = [tensor for ref in self._known if (tensor := ref()) is not None]
        for tensor in alive:
            if type(tensor) is Followed:
                tensor.__class__ = Tensor  # type: ignore[assignment]
            for key in _ALL:
                vars(tensor).pop(key, None)
        self._known, self._stops = [], []
        return alive

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One call of torch with a followed tensor."""
        name = getattr(func, "__name__", "")
        if func in _BACK:
            self._require_losses(args, kwargs)
            return func(*args, **kwargs)
        if func in (Tensor.__bool__, torch.is_nonzero):
            owned = getattr(args[0], _OWNED, None)
            if owned is not None and owned.watch == self.watch.number:
                raise decides(Watch.note(self.watch, "reads", None, "Python reads a value"))
        if func in _HOOKS:
            raise IsolationError(
                f"loop={name} ({line_of_user()}): hooks on tensors of the loop can not be "
                "followed; put the hook into the module, where it is."
            )
        if func in _COPIES or func in _TEXTS:
            if func in _TEXTS:
                self.watch.reads.append(Finding("reads", name, None, line_of_user()))
            return _as_plain(func, args, kwargs)
        if name in _EXPORTS:
            place = Finding("reads", name, None, line_of_user(), EXPORTED)
            self.watch.reads.append(place)
            return func(*args, **kwargs)
        with self.watch:
            made = func(*args, **kwargs)
        if name == "__get__" and type(made) is Tensor and not hasattr(made, _OWNED):
            self._own_as(made, args[0])  # `.data` is no operation
        for tensor in _results(made):
            if type(tensor) is Tensor and (hasattr(tensor, _OWNED) or hasattr(tensor, _RANDOM)):
                self._mark(tensor, hasattr(tensor, _OWNED))
        return made

    def _own_as(self, made: Tensor, of: Tensor) -> None:
        """What looks at the same numbers is of the same records."""
        owned = self.watch.owned(of)
        if owned is not None and made.shape == of.shape:
            self.watch.adopt(made, owned.owners)
            self.watch.own(made, owned.owners, owned.origin)

    def _mark(self, tensor: Tensor, followed: bool = True) -> None:
        if followed:
            setattr(tensor, _FOLLOW, self)
            tensor.__class__ = Followed
        self._known.append(weakref.ref(tensor))

    def _require_places(self) -> None:
        for finding in self.watch.findings:
            if finding.kind == "place":
                raise refusals.place_decides(finding)
            if finding.kind == "writes":
                raise refusals.keeps(finding)

    def _require_losses(self, args: Any, kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        losses = list(tensors_in(given))
        gradients = [*args[1:2], kwargs.get("gradient"), kwargs.get("grad_tensors")]
        self._require_places()
        for loss in losses:
            owned = self.watch.owned(loss)
            total: Total | None = getattr(loss, _TOTAL, None)
            if owned is None:
                continue
            if total is None:
                raise self._refusal(owned, loss)
            if any(True for _ in tensors_in(gradients)):
                raise IsolationError(
                    "backward(gradient): must be left out, the gradient of the loss is 1; multiply "
                    "each record's loss by a constant of its own and take the mean."
                )
            self._require_numbers()
            self._require_known_ways(loss)
            self.approve(total)
            self.losses.append(total)
            self.numbers = list(self.watch.numbers)

    def _refusal(self, owned: Owned, loss: Tensor) -> IsolationError:
        finding = owned.origin
        if finding is None and loss.numel() > 1:
            return IsolationError(
                f"loss={loss.ndim} axes: must be a mean or sum over the records; call mean()."
            )
        if finding is None:
            return IsolationError(
                "loss=of one record: must be made from all records of the batch, each with the "
                "same weight; take the mean over the records."
            )
        return meets(finding)

    def _require_numbers(self) -> None:
        """Refuse numbers that were read off records and went into the loss."""
        read = {value for value in self.watch.values if self._is_telling(value)}
        used = {abs(number) for call in self.watch.numbers for number in call[1:]}
        for factor in map(abs, self.watch.factors):
            used |= {factor, 1 / factor if factor else 0.0}
        if any(_close(value, number) for value in map(abs, read) for number in used):
            raise IsolationError(
                "loss=holds a number that was read from records (item() or float()): must not be "
                "scaled by what records decide, because it changes the gradients of all; use "
                "constants, and read values for logs alone."
            )

    def _is_telling(self, value: float) -> bool:
        """Whether a number in the loss that equals one which was read is no chance: an accuracy of
        one half may well be beside a weight of one half."""
        if not math.isfinite(value):
            return False
        if value == int(value):
            return abs(value) > 2 and value != self.records
        return abs(Fraction(value).limit_denominator(1000) - value) > 1e-7 * abs(value)

    def _require_known_ways(self, loss: Tensor) -> None:
        """Refuse a backward pass with Python of the user's between module and loss."""
        seen: set[Any] = set(self._stops)
        waiting: list[Any] = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                if getattr(type(node), "_forward_cls", None) is Capture:
                    continue
                raise IsolationError(
                    f"loss={type(node).__name__}: a torch.autograd.Function of your own in the "
                    "loop can not be followed; put it into the module."
                )
            waiting += [following for following, _ in node.next_functions]


def outputs_of_module(
    module: nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    known: Sequence[Tensor],
    axis_of: Callable[[Tensor], int],
    records: int,
) -> list[Tensor]:
    """Whose the outputs of a module are: stand-ins without numbers that know it.

    Args:
        module: runs on fake tensors.
        arguments: with which the loop called it.
        known: the arguments' tensors as the loop had them, in order.
        axis_of: the axis of the records in an argument.
        records: how many there are.
    """
    layers = Layers(module)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    watch = LoopWatch(records, fake, lambda: layers.now)
    follower = _Follower(records, watch, layers)
    waiting = iter(known)

    def stand_in(tensor: Tensor) -> Tensor:
        one = next(waiting)
        with fake:
            made = torch.empty_strided(
                tensor.size(),
                tensor.stride(),
                dtype=tensor.dtype,
                device=tensor.device,
                requires_grad=tensor.requires_grad,
            )
        watch.adopt(made, on_axis(tensor.ndim, axis_of(tensor), records))
        if hasattr(one, _LEAF):
            setattr(made, _LEAF, getattr(one, _LEAF))
        return made

    args, kwargs = each(stand_in, arguments)
    mark((args, kwargs))
    with (
        global_seeds_kept(),
        _attributes_kept(module),
        layers.followed(),
        _plain_operations(),
        warnings.catch_warnings(),
        _quiet(),
        watch,
        follower,
    ):
        warnings.simplefilter("ignore")
        try:
            made = module(*args, **kwargs)
        except NotIsolated as stop:
            raise refusals.stopped(stop.finding) from None
    return list(objects_in(made))


def has_mixed(owners: Tensor) -> bool:
    """Whether any element is made from several records."""
    return bool((owners == MIXED).any())


def _all_alike(owners: Tensor, records: int) -> bool:
    """Whether all records have as many elements."""
    whose = owners.flatten()
    counts = torch.bincount(whose[whose != FREE].long(), minlength=records)
    return len(counts) == records and bool((counts == counts[0]).all())


def _is_arange(tensor: Tensor) -> bool:
    """Places in the batch, which pick each record's own entry."""
    if tensor.dtype != torch.int64 or tensor.numel() != max(tensor.shape, default=0):
        return False
    places = torch.arange(tensor.numel(), device=tensor.device)
    return bool((tensor.flatten() == places).all())


def leaves(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors of a batch, with the way to each."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, (*path, key))
    elif isinstance(batch, (tuple, list)):
        for place, value in enumerate(batch):
            yield from leaves(value, (*path, place))


def objects_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """All tensors of a nest, those that are attributes of plain objects included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from objects_in(item, (*inside, id(value)))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from objects_in(item, (*inside, id(value)))
    elif (hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module))) and id(
        value
    ) not in inside:
        for item in vars(value).values():
            yield from objects_in(item, (*inside, id(value)))


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


def mixes_before(finding: Finding) -> IsolationError:
    """Records meet before the module."""
    if finding.kind in ("no rule", "carries"):
        return refusals.mixes(finding, None)
    return IsolationError(
        f"loop={finding.place} mixes records before the module: row i of what the module gets must "
        "be made from record i alone; take mixup and statistics of the batch out of the loop, and "
        "use constants that are fixed beforehand."
    )


def meets(finding: Finding) -> IsolationError:
    """Records meet in the loss otherwise than in a last sum or mean."""
    if finding.kind in ("no rule", "carries"):
        return refusals.mixes(finding, None)
    if finding.detail == _DIVIDES:
        return token_mean(finding.place)
    if finding.operation.startswith("aten.div"):
        return IsolationError(
            f"loss=divided in {finding.place} by what the records decide together: a token mean of "
            "a padded batch or weights that are normalised over the batch change the gradients of "
            "all records; take steppe.losses.per_record_token_mean(logits, labels).mean(), or "
            "divide by a constant."
        )
    where = f" of {finding.layer}" if finding.layer else ""
    return IsolationError(
        f"loss=mixes records in {finding.place}{where}: must be a mean or sum, at the very end, of "
        "terms that each depend on one record, with weights that no record decides; take the "
        'loss with reduction="none", and then its mean().'
    )


def token_mean(place: str) -> IsolationError:
    """A mean whose divisor the labels decide."""
    return IsolationError(
        f"loss={place} divides by what all labels decide together (tokens that are not ignored, or "
        "class weights): one record changes the gradients of the others; take "
        "steppe.losses.per_record_token_mean(logits, labels, ignore_index=-100).mean() outside of "
        'the module for tokens, or reduction="none" and then mean() for one label a record.'
    )


def decides(finding: Finding) -> IsolationError:
    """The loop goes by values."""
    line = f" ({finding.line})" if finding.line else ""
    return IsolationError(
        f"loop=decides by a value made from records{line}: one record could change what happens to "
        "all, as with NaN guards and hard examples; decide with torch.where on each record, and "
        "read values with float() for logs alone."
    )


def _leaf_of(name: str, given: dict[str, Any]) -> Path | None:
    if name not in _MOVED:
        return None
    tensors = [t for t in _tensors(given.values()) if hasattr(t, _OWNED)]
    paths = {getattr(tensor, _LEAF, None) for tensor in tensors}
    return paths.pop() if len(paths) == 1 else None


def _kept(name: str, given: dict[str, Any]) -> tuple[Any, ...] | None:
    """Follow `labels != ignore_index` and the number of those."""
    tensor = given.get("self")
    known = getattr(tensor, _KEPT, None)
    if name in ("eq", "ne"):
        leaf, number = getattr(tensor, _LEAF, None), given.get("other")
        if leaf is None or not isinstance(number, (int, float)):
            return None
        return ("kept" if name == "ne" else "left out", (leaf, int(number)))
    if known is None or tensor is None:
        return None
    if name in ("bitwise_not", "logical_not"):
        return ("left out" if known[0] == "kept" else "kept", known[1])
    if name == "sum" and known[0] == "kept" and given.get("dim") in (None, []):
        return ("count", known[1], tensor.numel())
    return known if name in _MOVED else None


def numbers_in(nest: Any) -> Iterator[float]:
    """All Python numbers of a nest."""
    if isinstance(nest, (int, float)) and not isinstance(nest, bool):
        yield float(nest)
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from numbers_in(item)
    elif isinstance(nest, Mapping):
        yield from numbers_in(list(nest.values()))


def _results(value: Any) -> Iterator[Tensor]:
    return tensors_in(value)


def _as_plain(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copies, texts and saved files know nothing of what is followed."""
    tensor = args[0]
    if type(tensor) is not Followed:
        return func(*args, **kwargs)
    kept = {key: vars(tensor).pop(key) for key in _ALL if key in vars(tensor)}
    tensor.__class__ = Tensor  # type: ignore[assignment]
    try:
        return func(*args, **kwargs)
    finally:
        tensor.__class__ = Followed
        vars(tensor).update(kept)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other)) > 0


EXPORTED = "values that leave torch"
_DIVIDES = "by what all labels decide"
_BACK = frozenset((Tensor.backward, torch.autograd.backward, torch.autograd.grad))
_HOOKS = frozenset((Tensor.register_hook, Tensor.register_post_accumulate_grad_hook))
_COPIES = frozenset((Tensor.__reduce_ex__, Tensor.__deepcopy__))
_TEXTS = frozenset((Tensor.__format__, Tensor.__repr__))
_EXPORTS = frozenset(
    ("numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "equal", "allclose", "share_memory_")
)
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
_MOVED = frozenset(
    (
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "unsqueeze",
        "squeeze",
        "expand",
        "alias",
        "detach",
        "clone",
        "_to_copy",
        "t",
        "permute",
        "transpose",
        "select",
        "slice",
        "narrow",
        "split",
        "unbind",
        "lift_fresh",
        "positive",
        "contiguous",
        "cat",
        "constant_pad_nd",
    )
)
_SAME = _MOVED - {"cat", "constant_pad_nd"}
