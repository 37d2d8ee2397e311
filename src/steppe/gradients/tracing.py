"""See every operation in which a weight meets a record.

The model is not wrapped, patched or hooked. While the tracer is active, torch hands it every call;
it lets all of them through except *contacts*: calls that mix tensors made from records with tensors
that need a gradient and were made from weights alone. Those go through a `ContactOp`, which
computes the same output but sends the backward pass only towards the activations, and keeps what is
needed to know each record's gradient of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
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
from steppe.utils.batches import tensors_in

_MARK = "_steppe_made_from_records"
_NUMBERS = itertools.count(1)
ANY_PASS = 0


def mark(value: Any, number: int = ANY_PASS) -> None:
    """Note that the tensors in `value` depend on records.

    Args:
        value: a tensor or a nest of them.
        number: of the pass whose records they are, see `Tracer`; no other may use them.
    """
    if isinstance(value, Tensor):
        setattr(value, _MARK, number)
        return
    for tensor in tensors_in(value):
        setattr(tensor, _MARK, number)


def unmark(tensor: Tensor) -> None:
    """Forget that a tensor depends on records."""
    if is_marked(tensor):
        delattr(tensor, _MARK)


def is_marked(tensor: Tensor) -> bool:
    """Whether a tensor depends on records."""
    return hasattr(tensor, _MARK)


def pass_of(tensor: Tensor) -> int:
    """The number of the pass that made a marked tensor."""
    return int(getattr(tensor, _MARK))


def made_in_another(tensor: Tensor, number: int) -> bool:
    """Whether a tensor was made from the records of another pass than this."""
    return getattr(tensor, _MARK, number) not in (number, ANY_PASS)


def _sort(
    values: Iterable[Any], inputs: list[Tensor], shared: list[Tensor], number: int
) -> Tensor | None:
    """Tensors made from records to one list, those made from weights that need a gradient to the
    other; returns one that another pass has made, if there is one. Called for every torch operation
    of the model, so it does no more than that."""
    stale: Tensor | None = None
    for value in values:
        if isinstance(value, Tensor):
            made_by = getattr(value, _MARK, None)
            if made_by is not None:
                inputs.append(value)
                if made_by != number and made_by != ANY_PASS:
                    stale = value
            elif value.requires_grad:
                shared.append(value)
        elif isinstance(value, (tuple, list, dict)):
            inside = value.values() if isinstance(value, dict) else value
            found = _sort(inside, inputs, shared, number)
            stale = stale if found is None else found
    return stale


def _mark_results(output: Any, args: tuple[Any, ...], func: Any, number: int) -> None:
    """Mark what a call on records has returned, but for arguments that it only hands back.

    `buffer.type_as(x)` is the buffer itself where the types agree already.
    """
    if isinstance(output, Tensor):
        if not args or output is not args[0] or _in_place(func):
            setattr(output, _MARK, number)
    elif output is not None:
        handed = {id(arg) for arg in args}
        for tensor in tensors_in(output):
            if id(tensor) not in handed:
                setattr(tensor, _MARK, number)
    if func is Tensor.__setitem__:
        mark(args[0], number)


def _in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name[-1:] == "_" and (name[-2:] != "__" or name[:3] == "__i")


Rule = Callable[[Contact], ContactOp | None]
Rewrite = Callable[..., Any]


@dataclass
class Rules:
    """What to do at a contact: a rule of its own, a rewrite into smaller calls, or the fallback.

    Attributes:
        own: function -> rule; a rule may decline by returning None.
        rewrites: function -> equivalent Python code, run with the tracer still watching.
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

# Beside a tensor of a class of its own, as fake ones are, Python asks the other way round.
_TURNED: dict[Any, Any] = {
    getattr(Tensor, one): getattr(Tensor, other)
    for one, other in (("gt", "lt"), ("ge", "le"), ("__gt__", "__lt__"), ("__ge__", "__le__"))
}


# Functions whose whole numbers say sizes, which may follow the number of records, or are numbers to
# reckon with and no axes.
_OF_SIZES_TEXT = """
    view reshape expand repeat tile broadcast_to resize_ as_strided affine_grid sum_to_size
    zeros ones full empty empty_strided rand randn randint randperm normal eye arange linspace
    tensor new_tensor new_zeros new_ones new_full new_empty new_empty_strided full_like randint_like
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d fold
    add sub mul div true_divide floor_divide remainder fmod pow rsub subtract multiply divide
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__
    __rtruediv__ __itruediv__ __rdiv__ __idiv__ __div__ __floordiv__ __rfloordiv__ __ifloordiv__
    __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    eq ne lt le gt ge clamp clamp_min clamp_max clip clamp_ clip_ minimum maximum where
    add_ sub_ mul_ div_ pow_ fill_ masked_fill masked_fill_ fill uniform_ normal_ random_
"""
_OF_SIZES = frozenset(_OF_SIZES_TEXT.split())
# Functions that name one axis among sizes, and at which place.
_AXIS_AT = {
    **dict.fromkeys(("narrow", "select", "unfold", "unflatten", "narrow_copy"), 1),
    **dict.fromkeys(("split", "chunk", "tensor_split", "repeat_interleave", "unsafe_split"), 2),
    **dict.fromkeys(("split_with_sizes", "unsafe_chunk", "split_copy"), 2),
}
_INDEXING = frozenset(("__getitem__", "__setitem__"))
_AXIS_NAMES = frozenset(("dim", "axis", "dims"))
_FREE = "without records"  # before a call that was given none


def note_call(
    calls: list[Any], func: Any, args: Any, kwargs: dict[str, Any], on_records: bool = True
) -> None:
    """Write down a call, with what it was told that does not depend on the number of records.

    Whole numbers say axes, unless the function is one of sizes. What is done without records may
    follow their number in any way: the proof compares what comes of it.
    """
    if func is Tensor.view_as:
        return  # torch itself adds those of hooks
    name = getattr(func, "__name__", "")
    by_name: Any
    if not on_records or name in _OF_SIZES:
        kinds, by_name = _WITHOUT, ()
    elif name in _AXIS_AT or name in _INDEXING:
        kinds, by_name = _WITHOUT, _AXIS_NAMES
    else:
        kinds, by_name = _WITH_AXES, None
    func = _TURNED.get(func, func)
    told = [value for value in args if type(value) in kinds]
    if by_name is _AXIS_NAMES:
        told += _axis(name, args)
    if kwargs:
        told += [
            (key, value)
            for key, value in kwargs.items()
            if type(value) in kinds or (by_name and key in by_name and type(value) is int)
        ]
    if not on_records:
        calls.append((_FREE, func, *map(_hashable, told)))
    else:
        calls.append((func, *map(_hashable, told)) if told else func)


def on_records(calls: list[Any]) -> list[Any]:
    """Those of the calls that were noted which were given records."""
    return [call for call in calls if type(call) is not tuple or call[0] is not _FREE]


def name_of(call: Any) -> str:
    """The function's name, for errors."""
    if type(call) is tuple:
        call = call[1] if call[0] is _FREE else call[0]
    return getattr(call, "__name__", str(call))


def _axis(name: str, args: Any) -> list[Any]:
    """Which axis is meant by a call whose other whole numbers are sizes or places."""
    if name in _INDEXING:
        index = args[1]
        return [tuple(map(_kind, index)) if type(index) is tuple else _kind(index)]
    place = _AXIS_AT[name]
    return [args[place]] if len(args) > place and type(args[place]) is int else []


def _kind(index: Any) -> type:
    return Tensor if isinstance(index, Tensor) else type(index)  # fake ones stand for others


_WITHOUT = frozenset((bool, str))
_WITH_AXES = _WITHOUT | {int, tuple, list}


def _hashable(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(
            [_hashable(item) for item in value if type(item) in _WITH_AXES or type(item) is type]
        )
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
        if _sort((*args, *kwargs.values()), [], [], self._number) is not None:
            self._stale(func)
        output = func(*args, **kwargs)
        if next(tensors_in((args, kwargs)), None) is not None:
            _mark_results(output, args, func, self._number)
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
        self.number = next(_NUMBERS)
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
        stale = _sort(args, inputs, shared, self.number)
        if kwargs:
            found = _sort(kwargs.values(), inputs, shared, self.number)
            stale = stale if found is None else found
        if stale is not None:
            self._stale(func)
        if not self._rewriting:
            note_call(self.calls, func, args, kwargs, bool(inputs))
        if not inputs:
            return func(*args, **kwargs)
        func = self._rules.unchecked.get(func, func)
        if shared and torch.is_grad_enabled():
            if (rewrite := self._rules.rewrites.get(func)) is not None:
                return self._rewritten(rewrite, args, kwargs)
            if self._capture:
                output = self._contact(func, args, kwargs, tuple(inputs), tuple(shared))
            else:
                output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
        _mark_results(output, args, func, self.number)
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
        """Refuse a forward pass that left out something the probe saw."""
        if self._layouts is not None and len(self.uses) != len(self._layouts):
            raise _other_path(len(self.uses), "nothing")


def carried(func: Any) -> IsolationError:
    """A value that was kept in one pass is used in another."""
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
        "the records and of chance."
    )
