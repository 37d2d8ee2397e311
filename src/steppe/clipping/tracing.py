"""See every operation in which a weight meets a record.

The model is not wrapped, patched or hooked. While the tracer is active, torch hands it every call;
it lets all of them through except *contacts*: calls that mix tensors made from records with tensors
that need a gradient and were made from weights alone. Those go through a `Use`, which computes the
same output but sends the backward pass only towards the activations, and keeps what is needed to
know each record's gradient of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from steppe.clipping.batches import tensors_in
from steppe.clipping.contact import ANCHOR, Capture, Contact, Layouts, Output, Use, leaf_ids
from steppe.clipping.kernels import Kernels
from steppe.errors import UnsupportedModelError

_MARK = "_steppe_made_from_records"


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

# Beside a tensor of a class of its own, as fake ones are, Python asks the other way round.
_TURNED: dict[Any, Any] = {
    getattr(Tensor, one): getattr(Tensor, other)
    for one, other in (("gt", "lt"), ("ge", "le"), ("__gt__", "__lt__"), ("__ge__", "__le__"))
}


# Functions whose whole numbers say axes, and not sizes.
_OF_AXES_TEXT = """
    mean sum std var std_mean var_mean amax amin max min argmax argmin softmax log_softmax
    softmin cumsum cumprod cummax cummin logcumsumexp sort argsort topk logsumexp norm
    normalize median prod any all cat concat concatenate stack unbind transpose permute
    movedim flip squeeze unsqueeze gather scatter scatter_add index_select index_add
    quantile kthvalue mode flatten cosine_similarity vector_norm glu roll
"""
_OF_AXES = frozenset(_OF_AXES_TEXT.split())


def note_call(calls: list[Any], func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Write down a call, with what it was told that does not depend on the number of records."""
    if func is Tensor.view_as:
        return  # torch itself adds those of hooks
    kinds = _WITH_AXES if getattr(func, "__name__", "") in _OF_AXES else _WITHOUT
    func = _TURNED.get(func, func)
    told = [value for value in args if type(value) in kinds]
    if kwargs:
        told += [(key, value) for key, value in kwargs.items() if type(value) in kinds]
    calls.append((func, *map(_hashable, told)) if told else func)


_WITHOUT = frozenset((bool, str))
_WITH_AXES = _WITHOUT | {int, tuple, list}


def _hashable(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([_hashable(item) for item in value if type(item) in _WITH_AXES])
    return value


Path = tuple[tuple[Any, ...], frozenset[Any]]
"""The calls of a forward pass in order, and those of its backward pass."""


def path_of(calls: list[Any], heard: list[Any]) -> Path:
    """One pass; how often hooks of saved tensors are asked on the way back is ours."""
    return tuple(calls), frozenset(heard)


class BackwardCalls(TorchFunctionMode):
    """Writes down the functions that hooks and autograd functions of the user's call.

    Args:
        calls: where.
    """

    def __init__(self, calls: list[Any]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _QUESTIONS:
            note_call(self._calls, func, args, kwargs)
        return func(*args, **kwargs)


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
        calls: the functions that were called, in order; those of a rewrite are not.
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
        _sort(args, inputs, shared)
        if kwargs:
            _sort(kwargs.values(), inputs, shared)
        if not self._rewriting:
            note_call(self.calls, func, args, kwargs)
        if not inputs:
            return func(*args, **kwargs)
        if shared and torch.is_grad_enabled():
            if (rewrite := self._rules.rewrites.get(func)) is not None:
                return self._rewritten(rewrite, args, kwargs)
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

    def _rewritten(self, rewrite: Rewrite, args: Any, kwargs: dict[str, Any]) -> Any:
        """The same in smaller calls. How they are chosen is ours, and no part of the model."""
        outer, self._rewriting = self._rewriting, True
        try:
            with self:
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
        output = Capture.apply(use, ANCHOR, *contact.inputs)  # type: ignore[no-untyped-call]
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
