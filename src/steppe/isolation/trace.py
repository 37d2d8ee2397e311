"""One pass of an objective, there and back, with every operation followed.

Model, loss, hooks and backward pass run as they do in a step, up to where gradients of weights
would be made. What a step is made from are the *signals* that reach each contact: its inputs on the
way there and the gradients of its outputs on the way back.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
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
from steppe.isolation.rules import rule_of
from steppe.isolation.watch import Watch
from steppe.isolation.where import Layers
from steppe.utils.batches import each, tensors_in

Objective = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Signal:
    """A tensor at a contact: its form, and whose it is."""

    shape: tuple[int, ...]
    owned: Owned | None
    bytes: int


@dataclass
class FollowedContact:
    """One contact of a pass, and what passed through it.

    Attributes:
        operation: the name of the function.
        weights: the identities of the weights that it uses, as `leaf_ids` gives them.
        layer: the module that was running.
        inputs, outputs: made from records.
        gradients: of the outputs; None where none came.
    """

    operation: str
    weights: tuple[int | None, ...]
    layer: str | None
    inputs: list[Signal]
    outputs: list[Signal] = field(default_factory=list)
    gradients: list[Signal | None] = field(default_factory=list)


@dataclass
class Trace:
    """What one pass showed.

    Attributes:
        records: how many there were.
        losses: one for each record.
        contacts: the contacts, in order.
        findings: what keeps the pass from being proven.
        operations: see `Watch`.
        forward_operations: how many of them are those of the forward pass.
        backward: whether the backward pass was followed too.
        calls: the functions of torch that model and loss called on records, in order.
        backward_calls: those that hooks and autograd functions called on the way back.
        reads_random: whether Python read a random number.
        unmarked: tensors made from records that no later pass would know as such.
        draws: see `Watch`.
        answer: the place that was asked for.
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
        """What a pass of a step is compared with."""
        return path_of(self.calls, self.backward_calls)


class _Seam(torch.autograd.Function):
    """Where a contact's outputs leave for the rest of the model, and their gradients come back."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[..., None], leaf: Tensor, *outputs: Tensor) -> Any:
        del leaf
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        # Other tensors over the same memory, which the model may change in place as it may without.
        made = tuple([torch.ops.aten._unsafe_view(out, out.shape) for out in outputs])
        return made[0] if len(made) == 1 else made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        with torch._C.DisableTorchFunction():
            ctx.receive(grads)
        return (None, None, *grads)


class Follower(Tracer):
    """Leaves contacts to autograd and listens at their seams."""

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
        if self._asked == len(self.calls):  # the last that comes when so many were noted
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
        # A copy: the backward pass may need what the model is about to write over.
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
    """Also stops where numbers leave torch."""

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
    """Some functions write to `out` in no operation that torch dispatches."""
    if not any(watch.owned(tensor) is not None for tensor in tensors_in(args)):
        return
    for tensor in tensors_in(out):
        if watch.owned(tensor) is None:
            finding = watch.note(
                "no rule", getattr(func, "__name__", func), "a tensor written out of sight"
            )
            watch.own(tensor, everywhere(tensor.ndim, MIXED), finding)


def _stop_leaving(watch: Watch, func: Any, args: Any) -> None:
    if getattr(func, "__name__", "") in LEAVING and watch.owned(args[0]) is not None:
        raise NotIsolated(watch.note("reads", f"{func.__name__}()", "numbers leave torch"))


@contextmanager
def plain_operations() -> Iterator[None]:
    """oneDNN takes a whole recurrent layer in one operation, for which there is no rule."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Fake tensors write errors of the user's code to a log before they raise them."""
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
    """Follow one pass on fake tensors of the form of a batch.

    Args:
        model: whose layers are named.
        objective: maps a batch to one loss for each record.
        batch: of any values; only its form is used.
        records: how many it has.
        backward: whether to follow the backward pass too.
        seed: of random numbers.
        random_owners: whose random numbers are drawn, where that is known.
        asked: what to say the place of.

    Raises:
        NotIsolated: the pass read a value that depends on records.
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
