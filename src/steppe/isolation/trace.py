"""One forward and backward pass of an objective, with every operation followed.

Model, loss, hooks and backward pass run as they do in a step, except that no gradient of a weight
is computed. A step uses the *signals* that reach each contact: its inputs in the forward pass and
the gradients of its outputs in the backward pass.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe.gradients import (
    BACKWARD_LEAF,
    RULES,
    BackwardCalls,
    Contact,
    Path,
    Tracer,
    backward_to,
    check_losses,
    leaf_ids,
    mark,
    out_of_place,
    path_of,
    saved_as_they_are,
    value_free,
)
from steppe.isolation.findings import Asked, Finding, NotIsolated, Owned
from steppe.isolation.operation_notes import OperationNote
from steppe.isolation.operators import LEAVING
from steppe.isolation.owners import MIXED, everywhere, on_axis
from steppe.isolation.random_owners import Draw, RandomOwners
from steppe.isolation.refusals import forward_mode
from steppe.isolation.rules import rule_of
from steppe.isolation.watch import Watch
from steppe.isolation.where import Layers
from steppe.utils.batches import each, tensors_in

Objective = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Signal:
    """A tensor at a contact: its shape and its owners."""

    shape: tuple[int, ...]
    owned: Owned | None
    bytes: int


@dataclass
class FollowedContact:
    """One contact of a pass, with its signals.

    Attributes:
        operation: the name of the function.
        weights: the identities of the weights that it uses, as `leaf_ids` gives them.
        layer: the module that was running.
        inputs, outputs: those that depend on records.
        gradients: of the outputs; None for an output without gradient.
    """

    operation: str
    weights: tuple[int | None, ...]
    layer: str | None
    inputs: list[Signal]
    outputs: list[Signal] = field(default_factory=list)
    gradients: list[Signal | None] = field(default_factory=list)


@dataclass
class Trace:
    """The result of following one pass.

    Attributes:
        records: the batch size.
        losses: one for each record.
        contacts: the contacts, in order.
        findings: the reasons why the pass is not proven.
        operations: see `Watch`.
        forward_operations: how many of them belong to the forward pass.
        backward: whether the backward pass was followed too.
        calls: the functions of torch that model and loss called on records, in order.
        backward_calls: those that hooks and autograd functions called in the backward pass.
        reads_random: whether Python read a random number.
        unmarked: tensors made from records that a later pass would not recognise.
        draws: see `Watch`.
        answer: the location that was asked for.
    """

    records: int
    losses: Signal
    contacts: list[FollowedContact]
    findings: list[Finding]
    operations: list[OperationNote]
    forward_operations: int
    backward: bool
    calls: list[Any]
    backward_calls: list[Any]
    reads_random: bool
    unmarked: list[weakref.ref[Tensor]]
    draws: list[Draw]
    answer: str | None = None

    @property
    def path(self) -> Path:
        """The calls that the passes of a step are compared with."""
        return path_of(self.calls, self.backward_calls)


class _Seam(torch.autograd.Function):
    """The outputs of a contact, as the rest of the model gets them, and their gradients."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[..., None], leaf: Tensor, *outputs: Tensor) -> Any:
        del leaf
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        # Other tensors over the same memory, which the model may change in place.
        made = tuple([torch.ops.aten._unsafe_view(out, out.shape) for out in outputs])
        return made[0] if len(made) == 1 else made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        with torch._C.DisableTorchFunction():
            ctx.receive(grads)
        return (None, None, *grads)


class Follower(Tracer):
    """A tracer that leaves contacts to autograd and records their signals."""

    def __init__(
        self, records: int, watch: Watch, layers: Layers, asked: int | None = None
    ) -> None:
        super().__init__(records, RULES)
        self._asked = asked
        self.contacts: list[FollowedContact] = []
        self._owners, self._layers = watch, layers
        watch.marks = self.number

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._asked == len(self.calls):  # the last module that began at this number of calls
            self._owners.answer = self._owners.place()
        _stop_leaving(self._owners, func, args)
        output = super().__torch_function__(func, types, args, kwargs)
        if kwargs and "out" in kwargs:
            _require_seen(self._owners, func, args, kwargs["out"])
        self._layers.remember(output)
        return output

    def _stale(self, func: Any) -> None:
        """The watch finds it, with its place."""

    def _contact(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: tuple[Tensor, ...],
        shared: tuple[Tensor, ...],
    ) -> Any:
        contact = Contact(func, args, kwargs, self.records, inputs, shared)
        followed = FollowedContact(
            contact.name, leaf_ids(shared), self._layers.now, [self.signal(t) for t in inputs]
        )
        self.contacts.append(followed)
        # A copy, because the backward pass may need values that the model is about to overwrite.
        given = (args[0].clone(), *args[1:]) if contact.in_place else args
        with saved_as_they_are(twice=True):  # otherwise as in a step
            made = out_of_place(contact)(*given, **kwargs)
        outputs = (made,) if isinstance(made, Tensor) else tuple(made)
        followed.outputs = [self.signal(t) for t in outputs]

        def receive(grads: tuple[Tensor | None, ...]) -> None:
            followed.gradients = [None if g is None else self.signal(g) for g in grads]

        left = _Seam.apply(receive, BACKWARD_LEAF, *outputs)  # type: ignore[no-untyped-call]
        if contact.in_place:
            return args[0].copy_(left)
        if isinstance(made, Tensor):
            return left
        parts = (left,) if isinstance(left, Tensor) else left
        return list(parts) if isinstance(made, list) else tuple(parts)

    def signal(self, tensor: Tensor) -> Signal:
        size = tensor.numel() * tensor.element_size()
        return Signal(tuple(tensor.shape), self._owners.owned(tensor), size)


class _BackwardFollower(BackwardCalls):
    """A mode for the backward pass that also ends it if values leave torch."""

    def __init__(self, calls: list[Any], number: int, watch: Watch) -> None:
        super().__init__(calls, number)
        self._owners = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        _stop_leaving(self._owners, func, args)
        output = super().__torch_function__(func, types, args, kwargs)
        if kwargs and "out" in kwargs:
            _require_seen(self._owners, func, args, kwargs["out"])
        return output

    def _stale(self, func: Any) -> None:
        """The watch finds it, with its place."""


def _require_seen(watch: Watch, func: Any, args: Any, out: Any) -> None:
    """Reject functions that write to `out` without an operation that torch dispatches."""
    if not any(watch.owned(tensor) is not None for tensor in tensors_in(args)):
        return
    for tensor in tensors_in(out):
        if watch.owned(tensor) is None:
            finding = watch.note(
                "no rule", getattr(func, "__name__", func), "a tensor written out of sight"
            )
            watch.own(tensor, everywhere(tensor.ndim, MIXED), finding)


def _stop_leaving(watch: Watch, func: Any, args: Any) -> None:
    if getattr(func, "__name__", "") not in LEAVING:
        return
    watch.expose(args[0])  # records may be written there later
    if watch.owned(args[0]) is not None:
        raise NotIsolated(watch.note("reads", f"{func.__name__}()", "numbers leave torch"))


@contextmanager
def plain_operations() -> Iterator[None]:
    """A block without oneDNN, which runs a recurrent layer as one operation that has no rule."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def no_forward_mode() -> Iterator[None]:
    """A block in which functions of torch.func that differentiate forwards are refused by name.

    torch fails on them on fake tensors, some end the process.
    """
    begin = eager_transforms.jvp_increment_nesting

    def refused() -> AbstractContextManager[int]:
        raise forward_mode()

    vars(eager_transforms)["jvp_increment_nesting"] = refused
    try:
        yield
    finally:
        vars(eager_transforms)["jvp_increment_nesting"] = begin


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which fake tensors do not log errors of the user's code before raising them."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def trace(
    model: nn.Module,
    objective: Objective,
    batch: Any,
    records: int,
    backward: bool = True,
    seed: int = 0,
    random_owners: RandomOwners | None = None,
    asked: Asked | None = None,
) -> Trace:
    """Follow one pass on fake tensors with the shapes and types of a batch.

    Args:
        model: whose layers are named.
        objective: maps a batch to one loss for each record.
        batch: only its structure, shapes and types are used.
        records: the batch size.
        backward: whether to follow the backward pass too.
        seed: of random numbers.
        random_owners: the owners of random numbers, if they are known.
        asked: which operation or call to locate.

    Raises:
        NotIsolated: the pass reads a value that depends on records.
    """
    layers = Layers(model)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    watch = Watch(records, rule_of, fake, lambda: layers.now, seed, random_owners)

    def fake_rows(tensor: Tensor) -> Tensor:
        with fake:
            made = torch.empty_like(tensor, requires_grad=tensor.requires_grad)
        watch.adopt(made, on_axis(tensor.ndim, 0, records))
        return made

    alias = each(fake_rows, batch)
    kind, number = (None, None) if asked is None else (asked.kind, asked.number)
    watch.asked = number if kind == "operations" else None
    follower = Follower(records, watch, layers, number if kind == "calls" else None)
    mark(alias, follower.number)
    with (
        layers.followed(),
        plain_operations(),
        no_forward_mode(),
        torch.enable_grad(),
        warnings.catch_warnings(),
        quiet(),
        watch,
    ):
        warnings.simplefilter("ignore")
        with follower, value_free():
            losses = objective(alias)
        check_losses(losses, records)
        forward_operations, backward_calls = len(watch.operations), list[Any]()
        if backward and follower.contacts and losses.requires_grad:
            with _BackwardFollower(backward_calls, follower.number, watch), value_free():
                backward_to(BACKWARD_LEAF, losses)
    return Trace(
        records,
        follower.signal(losses),
        follower.contacts,
        watch.findings,
        watch.operations,
        forward_operations,
        backward,
        follower.calls,
        backward_calls,
        watch.reads_random,
        watch.unmarked(),
        watch.draws,
        watch.answer,
    )
