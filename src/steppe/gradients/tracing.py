"""Follows every operation of a model and finds those of a weight and a record.

The model is not wrapped, patched or hooked. While the tracer is active, torch hands it every call;
it lets all of them through except *contacts*: calls that mix tensors made from records with tensors
that need a gradient and were made from weights alone. Those go through a `ContactOp`, which
computes the same output but sends the backward pass only towards the activations, and keeps what is
needed to know each record's gradient of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients.contact import (
    BACKWARD_LEAF,
    Capture,
    Contact,
    ContactLayout,
    ContactOp,
    Output,
    leaf_ids,
    saved_as_they_are,
)
from steppe.gradients.kernel_choice import Kernels
from steppe.gradients.marks import mark_results, sort_arguments
from steppe.gradients.paths import note_call, note_failure
from steppe.utils.batches import tensors_in

_NUMBERS = itertools.count(1)


def new_number() -> int:
    """The number of a pass."""
    return next(_NUMBERS)


Rule = Callable[[Contact], ContactOp | None]
Rewrite = Callable[..., Any]


@dataclass
class Rules:
    """How contacts are computed: by a rule, a rewrite into smaller calls, or the fallback.

    Attributes:
        own: function -> rule; a rule may decline by returning None.
        rewrites: function -> equivalent Python code, run with the tracer still watching; it may
            decline by returning NotImplemented.
        unchecked: functions that look at values before they compute, and the same without.
        fallback: the rule for everything else.
    """

    fallback: Callable[[Contact], ContactOp]
    own: dict[Callable[..., Any], Rule] = field(default_factory=dict)
    rewrites: dict[Callable[..., Any], Rewrite] = field(default_factory=dict)
    unchecked: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)


# Questions about a tensor's form: they make no tensor, so there is nothing to follow.
_QUESTIONS: frozenset[Any] = (
    frozenset(
        getattr(Tensor, name) if not isinstance(getattr(Tensor, name), property) else name
        for name in (
            "size",
            "dim",
            "numel",
            "stride",
            "is_contiguous",
            "is_floating_point",
            "__len__",
        )
    )
    | frozenset(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "is_nested")
    )
    | {torch.ops.prim.device.default}
)  # as fake tensors ask


class BackwardCalls(TorchFunctionMode):
    """Writes down the functions that hooks and autograd functions of the user's call.

    Args:
        calls: where.
        number: of the pass, see `Tracer`. What hooks compute bears its mark.
    """

    def __init__(self, calls: list[Any], number: int) -> None:
        super().__init__()
        self._calls, self._number = calls, number

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            return func(*args, **kwargs)
        note_call(self._calls, func, args, kwargs)
        if sort_arguments((*args, *kwargs.values()), [], [], self._number) is not None:
            self._stale(func)
        try:
            output = func(*args, **kwargs)
        except Exception:
            note_failure(self._calls, func)
            raise
        if next(tensors_in((args, kwargs)), None) is not None:
            mark_results(output, args, func, self._number)
        return output

    def _stale(self, func: Any) -> None:
        raise carried(func)


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
        number: of the pass. Tensors made from its records bear it, and those of other passes are
            refused.
        uses: the contacts of this batch, in order.
        calls: the functions that were called, in order; those of a rewrite are not.
    """

    def __init__(
        self,
        records: int,
        rules: Rules,
        layouts: list[ContactLayout] | None = None,
        kernels: Kernels | None = None,
        want_dots: bool = False,
        watch: Callable[[Contact, Output], None] | None = None,
        capture: bool = True,
    ) -> None:
        super().__init__()
        self.records = records
        self.number = new_number()
        self.uses: list[ContactOp] = []
        self.calls: list[Any] = []
        self._rewriting = False
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
        stale = sort_arguments(args, inputs, shared, self.number)
        if kwargs:
            found = sort_arguments(kwargs.values(), inputs, shared, self.number)
            stale = stale if found is None else found
        if stale is not None:
            self._stale(func)
        if not self._rewriting:
            note_call(self.calls, func, args, kwargs, bool(inputs))
        if not inputs:
            return func(*args, **kwargs)
        func = self._rules.unchecked.get(func, func)
        try:
            if shared and torch.is_grad_enabled():
                if (rewrite := self._rules.rewrites.get(func)) is not None:
                    output = self._rewritten(rewrite, args, kwargs)
                    if output is not NotImplemented:
                        return output
                if self._capture:
                    output = self._contact(func, args, kwargs, tuple(inputs), tuple(shared))
                else:
                    output = func(*args, **kwargs)
            else:
                output = func(*args, **kwargs)
        except Exception:
            note_failure(self.calls, func)
            raise
        mark_results(output, args, func, self.number)
        return output

    def _stale(self, func: Any) -> None:
        """A tensor that another pass made from its records is used."""
        raise carried(func)

    def _rewritten(self, rewrite: Rewrite, args: Any, kwargs: dict[str, Any]) -> Any:
        """The same in smaller calls. How they are chosen is ours, and no part of the model."""
        outer, self._rewriting = self._rewriting, True
        try:
            with self, saved_as_they_are():
                return rewrite(*args, **kwargs)
        finally:
            self._rewriting = outer

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
        with saved_as_they_are():
            output = Capture.apply(use, BACKWARD_LEAF, *contact.inputs)  # type: ignore[no-untyped-call]
        if self._watch is not None:
            self._watch(contact, output)
        if not use.keeps_arguments:
            # Autograd keeps what the backward pass needs and lets go of it on the way.
            contact.args, contact.kwargs, contact.inputs = (), {}, ()
        return args[0].copy_(output) if contact.in_place else output

    def _expected(self, contact: Contact) -> ContactLayout:
        """The layouts that the probe found for this contact, if this is the one it saw."""
        layouts = self._layouts or []
        position = len(self.uses)
        if position < len(layouts) and self._fits(layouts[position], contact):
            return layouts[position]
        raise _other_path(position, contact.name)

    def _fits(self, expected: ContactLayout, contact: Contact) -> bool:
        if expected.operation != contact.name or len(expected.inputs) != len(contact.inputs):
            return False
        if expected.weights is not None and expected.weights != leaf_ids(contact.shared):
            return False
        for layout, tensor in zip(expected.inputs, contact.inputs, strict=True):
            if not layout.fits(tuple(tensor.shape), self.records):
                return False
        return True

    def require_whole(self) -> None:
        """Reject a forward pass that left out something the probe saw."""
        if self._layouts is not None and len(self.uses) != len(self._layouts):
            raise _other_path(len(self.uses), "nothing")


def carried(func: Any) -> IsolationError:
    """The error for a value of one pass that is used in another."""
    return IsolationError(
        f"{getattr(func, '__name__', func)}=of an earlier pass: a pass must not use what another "
        "one made from its records, because it would carry them out without noise; keep nothing "
        "from records in the model or beside it, no running values and no history."
    )


def _other_path(position: int, found: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"operation {position} of the forward pass={found!r}: must be the one that the probe saw, "
        "with the same weights and the same sizes a record; make the model's control flow and the "
        "sizes it works on (rows picked, sequences cut to the longest of the batch) independent of "
        "the records and of chance. Transformers drops attention masks that are all ones: leave "
        'out the mask if no record is padded, or load the model with attn_implementation="eager".'
    )
