"""See every operation in which a weight meets a record.

The model is not wrapped, patched or hooked. While the tracer is active, torch hands it every call;
it lets all of them through except *contacts*: calls that mix tensors made from records with tensors
that need a gradient and were made from weights alone. Those go through a `Use`, which computes the
same output but sends the backward pass only towards the activations, and keeps what is needed to
know each record's gradient of the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from steppe.clipping.batches import tensors_in
from steppe.clipping.kernels import Kernels
from steppe.clipping.layout import RECORDS_FIRST, Layout
from steppe.clipping.slots import Slot
from steppe.errors import UnsupportedModelError

_IN_PLACE = frozenset(
    ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__")
)
_MARK = "_steppe_made_from_records"

Output = Tensor | tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]


def mark(value: Any) -> None:
    """Note that the tensors in `value` depend on records."""
    if isinstance(value, Tensor):
        setattr(value, _MARK, True)
        return
    for tensor in tensors_in(value):
        setattr(tensor, _MARK, True)


def unmark(tensor: Tensor) -> None:
    """Forget that a tensor depends on records."""
    if is_marked(tensor):
        delattr(tensor, _MARK)


def leaf_ids(shared: Iterable[Tensor]) -> tuple[int | None, ...]:
    """Which weights these are; None for a tensor that was computed from weights."""
    return tuple([id(tensor) if tensor.is_leaf else None for tensor in shared])


def is_marked(tensor: Tensor) -> bool:
    """Whether a tensor depends on records."""
    return hasattr(tensor, _MARK)


def _sort(values: Iterable[Any], inputs: list[Tensor], shared: list[Tensor]) -> None:
    """Tensors made from records to one list, those made from weights that need a gradient to the
    other. Called for every torch operation of the model, so it does no more than that."""
    for value in values:
        if isinstance(value, Tensor):
            if hasattr(value, _MARK):
                inputs.append(value)
            elif value.requires_grad:
                shared.append(value)
        elif isinstance(value, (tuple, list)):
            _sort(value, inputs, shared)
        elif isinstance(value, dict):
            _sort(value.values(), inputs, shared)


@dataclass(frozen=True)
class Layouts:
    """Where the records lie in the inputs and outputs of one contact.

    Attributes:
        operation: the name of the function.
        inputs, outputs: one layout for each tensor.
        weights: the identities of the weights that it uses, as `leaf_ids` gives them; None lets
            any pass.
    """

    operation: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    weights: tuple[int | None, ...] | None = None


@dataclass
class Contact:
    """One call in which weights meet records.

    Attributes:
        function: the torch function that the model called.
        args, kwargs: its arguments as the model gave them.
        records: B, the number of records in this physical batch.
        inputs: the arguments made from records, in order.
        shared: the arguments made from weights that need a gradient, in order.
        layouts: where the records lie; None while the probe has not seen this contact yet.
        kernels: remembers which way each layer shape takes.
        want_dots: whether ⟨Gᵢ, θ⟩ will be asked for (the λθ term).
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    records: int
    inputs: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]
    layouts: Layouts | None = None
    kernels: Kernels = field(default_factory=Kernels)
    want_dots: bool = False

    @property
    def name(self) -> str:
        """The operation's name, for tables and errors."""
        return getattr(self.function, "__name__", str(self.function))

    @property
    def in_place(self) -> bool:
        """Whether the call was meant to change its first argument."""
        name = self.name
        return name[-1:] == "_" and (name[-2:] != "__" or name in _IN_PLACE)

    def input_layout(self, position: int = 0) -> Layout:
        """Where the records lie in the given input."""
        return self.layouts.inputs[position] if self.layouts else RECORDS_FIRST

    def output_layout(self, position: int = 0) -> Layout:
        """Where the records lie in the given output."""
        return self.layouts.outputs[position] if self.layouts else RECORDS_FIRST


class Use(ABC):
    """How one contact is computed: same output, backward towards the activations only.

    Attributes:
        path: which way the per-record gradients are obtained, for `steppe.inspect`.
        slots: after the backward pass, one (shared tensor, slot) pair for each weight involved.
    """

    path: str
    keeps_arguments = False  # whether the backward pass needs the call's arguments again

    @property
    def why(self) -> str:
        """Why this path: what its class says of itself in its first line."""
        return (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")

    def __init__(self, contact: Contact) -> None:
        self.contact = contact
        self.slots: list[tuple[Tensor, Slot]] = []

    @abstractmethod
    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        """Return the output and the tensors to save for the backward pass.

        `inputs` are `contact.inputs`, seen from inside the autograd function.
        """

    @abstractmethod
    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        """Return the gradients of the inputs (None where not needed) and fill `slots`."""


# A scalar that needs a gradient: it makes autograd visit a contact even where no activation before
# it needs one, as in the first layer. Asking for its gradient runs the whole backward pass.
ANCHOR = torch.zeros((), requires_grad=True)


class _Capture(torch.autograd.Function):
    """The seam between autograd and a `Use`."""

    @staticmethod
    def forward(ctx: Any, use: Use, anchor: Tensor, *inputs: Tensor) -> Output:
        del anchor
        output, saved = use.forward(*inputs)
        ctx.use = use
        ctx.save_for_backward(*saved)
        if isinstance(output, Tensor):
            return _changeable(output, saved)
        return tuple([_changeable(tensor, saved) for tensor in output])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        use: Use = ctx.use
        return (None, None, *use.backward(ctx.saved_tensors, grads, ctx.needs_input_grad[2:]))


def _changeable(output: Tensor, saved: tuple[Tensor | None, ...]) -> Tensor:
    """The same numbers as a tensor that the model may change in place, as it may without a tracer.

    Torch forbids that for views that come out of an autograd function. What the backward pass needs
    is not shared with the model unless torch can see it change.
    """
    if not output._is_view():
        return output
    where = output.untyped_storage().data_ptr()
    shared = any(t is not None and t.untyped_storage().data_ptr() == where for t in saved)
    return output.clone() if shared else torch.ops.aten._unsafe_view(output, output.shape)


Rule = Callable[[Contact], Use | None]
Rewrite = Callable[..., Any]


@dataclass
class Rules:
    """What to do at a contact: a rule of its own, a rewrite into smaller calls, or the fallback.

    Attributes:
        own: function -> rule; a rule may decline by returning None.
        rewrites: function -> equivalent Python code, run with the tracer still watching.
        fallback: the rule for everything else.
    """

    fallback: Callable[[Contact], Use]
    own: dict[Callable[..., Any], Rule] = field(default_factory=dict)
    rewrites: dict[Callable[..., Any], Rewrite] = field(default_factory=dict)


# Questions about a tensor's form: they make no tensor, so there is nothing to follow.
_QUESTIONS: frozenset[Any] = frozenset(
    getattr(Tensor, name) if not isinstance(getattr(Tensor, name), property) else name
    for name in ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "__len__")
) | frozenset(
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "is_nested")
)


class Tracer(TorchFunctionMode):
    """Follows one physical batch through the model and the loss.

    Args:
        records: number of records in the batch.
        rules: what to do at a contact.
        layouts: the layouts found by the probe, in the order of the contacts; None while probing.
        kernels: remembers which way each layer shape takes.
        want_dots: whether the λθ term will ask for inner products.
        watch: called with every contact and its output; the probe looks through it.
        capture: False leaves the contacts to autograd and only applies the rewrites, which gives
            the plain gradients of exactly the forward pass that is traced.

    Attributes:
        uses: the contacts of this batch, in order.
    """

    def __init__(
        self,
        records: int,
        rules: Rules,
        layouts: list[Layouts] | None = None,
        kernels: Kernels | None = None,
        want_dots: bool = False,
        watch: Callable[[Contact, Output], None] | None = None,
        capture: bool = True,
    ) -> None:
        super().__init__()
        self.records = records
        self.uses: list[Use] = []
        self._rules = rules
        self._layouts = layouts
        self._kernels = kernels or Kernels()
        self._want_dots = want_dots
        self._watch = watch
        self._capture = capture

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            return func(*args, **kwargs)
        inputs: list[Tensor] = []
        shared: list[Tensor] = []
        _sort(args, inputs, shared)
        if kwargs:
            _sort(kwargs.values(), inputs, shared)
        if not inputs:
            return func(*args, **kwargs)
        if shared and torch.is_grad_enabled():
            if (rewrite := self._rules.rewrites.get(func)) is not None:
                with self:
                    return rewrite(*args, **kwargs)
            if self._capture:
                output = self._contact(func, args, kwargs, tuple(inputs), tuple(shared))
            else:
                output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
        mark(output)
        if func is Tensor.__setitem__:
            mark(args[0])
        return output

    def _contact(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: tuple[Tensor, ...],
        shared: tuple[Tensor, ...],
    ) -> Any:
        contact = Contact(
            func, args, kwargs, self.records, inputs, shared, None, self._kernels, self._want_dots
        )
        if self._layouts is not None:
            contact.layouts = self._expected(contact)
        rule = self._rules.own.get(func)
        use = rule(contact) if rule else None
        if use is None:
            use = self._rules.fallback(contact)
        self.uses.append(use)
        output = _Capture.apply(use, ANCHOR, *contact.inputs)  # type: ignore[no-untyped-call]
        if self._watch is not None:
            self._watch(contact, output)
        if not use.keeps_arguments:
            # Autograd keeps what the backward pass needs and lets go of it on the way.
            contact.args, contact.kwargs, contact.inputs = (), {}, ()
        return args[0].copy_(output) if contact.in_place else output

    def _expected(self, contact: Contact) -> Layouts:
        """The layouts that the probe found for this contact, if this is the one it saw."""
        layouts = self._layouts or []
        position = len(self.uses)
        if position < len(layouts) and self._fits(layouts[position], contact):
            return layouts[position]
        raise _other_path(position, contact.name)

    def _fits(self, expected: Layouts, contact: Contact) -> bool:
        if expected.operation != contact.name or len(expected.inputs) != len(contact.inputs):
            return False
        if expected.weights is not None and expected.weights != leaf_ids(contact.shared):
            return False
        for layout, tensor in zip(expected.inputs, contact.inputs, strict=True):
            if not layout.fits(tuple(tensor.shape), self.records):
                return False
        return True

    def require_whole(self) -> None:
        """Refuse a forward pass that left out something the probe saw."""
        if self._layouts is not None and len(self.uses) != len(self._layouts):
            raise _other_path(len(self.uses), "nothing")


def _other_path(position: int, found: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"operation {position} of the forward pass={found!r}: must be the one that the probe saw, "
        "with the same weights and the same sizes a record; make the model's control flow and the "
        "sizes it works on (rows picked, sequences cut to the longest of the batch) independent of "
        "the records and of chance."
    )
