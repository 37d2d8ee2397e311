"""Records one at a time: isolated by construction, whatever model and loss do with a batch.

Each record goes through the model as a batch of one, so that the user's code has no other record to
look at. `torch.func.vmap` does that for many at once. Where it cannot, because the code reads
values or writes in place, records follow one another, and what one leaves behind must not reach the
next. Memory that is filled from records is marked with their pass, and an operation that meets the
mark of another pass is refused. vmap needs this too: torch lets a tensor that a module kept from
one batch meet the next batch place by place, without an error.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._functorch.autograd_function import custom_function_call
from torch.func import grad, vmap
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from steppe._global_seeds import global_seeds_kept, seed_everything
from steppe._modes import without_dropout
from steppe._text import first_line
from steppe.clipping.batches import count, each, rows, tensors_in, version
from steppe.clipping.captured import Found
from steppe.clipping.slots import Kept
from steppe.errors import IsolationError, MisuseError, UnsupportedModelError

Objective = Callable[[Any], Tensor]
Gradients = list[Tensor | None]
VMAP, ONE_BY_ONE = "vmap", "one by one"
_SEED = 20_245


class EachRecord:
    """Per-record gradients from passes in which the user's code sees one record at a time.

    Args:
        parameters: the weights to train, by name.
        model: where they are.

    Attributes:
        way: "vmap" or "one by one", once it is chosen.
        why: why not vmap, in torch's words where they are torch's; empty where it is vmap.

    Guarantees:
        A record's row depends on that record, the weights and random numbers alone. A tensor that
        the code keeps from other records raises `IsolationError` when it is used, and so does a
        write to a weight or buffer. In vmap no value can be read. One by one, code may also keep
        numbers and arrays of Python; that raises where they are attributes of modules, and
        elsewhere if they move the gradient of a made-up record, which goes first and last. Not
        followed are C++ extensions, threads, and code that takes vmap's tensors apart.
    """

    def __init__(self, parameters: Mapping[str, Tensor], model: nn.Module) -> None:
        self._parameters, self._model = parameters, model
        self._made_up: Any = None
        self.way = self.why = ""

    def choose(self, objective: Objective, example: Any) -> str:
        """Try both ways at set-up; weights, buffers and random numbers stay as they were.

        Args:
            objective: maps a batch to one loss for each record.
            example: made-up records, two or more.

        Returns:
            The way: vmap where it works and gives the gradients of autograd.
        """
        # Late: the probe imports the engine.
        from steppe.clipping.probing.sight import Subject, require_steady, unchanged

        self._made_up, self.why = each(torch.clone, rows(example, slice(0, 1))), ""
        for _, tensor in _state(self._model):
            if _pass_of(tensor) is not None:  # an earlier set-up, which put the value back
                _mark(tensor, None)
        with global_seeds_kept(), without_dropout(self._model), unchanged(self._model):
            self.way = ONE_BY_ONE
            wanted = self._tried(objective, example, _SEED)
            if not any(gradient is not None for gradient in wanted):
                raise UnsupportedModelError(
                    f"parameters={list(self._parameters)[:3]}: some trained weight must reach the "
                    "loss, and none does; use them in the forward pass without detach()."
                )
            steady = _close(self._tried(objective, example, _SEED + 1), wanted, 0.0)
            # By value: `.data` hides writes from torch's count of them.
            require_steady(Subject(self._model, self._parameters, objective), self._made_up, _SEED)
            self.way = VMAP
            try:
                found = self._tried(objective, example, _SEED)
            except Exception as error:  # whatever torch or the model says
                self.way, self.why = ONE_BY_ONE, first_line(error)
                return self.way
        # Where random numbers move gradients, the ways draw different ones and cannot be compared.
        if steady and not _close(found, wanted, 2e-3):
            self.way, self.why = ONE_BY_ONE, "vmap gives other gradients than autograd"
        return self.way

    def slots(self, objective: Objective, batch: Any, records: int) -> Found:
        """One slot for each trained weight that a physical batch used."""
        if not self.way:
            raise MisuseError("way=unknown: must be chosen at set-up; call choose() once before.")
        if records == 0:
            return []
        trained = [p for p in self._parameters.values() if p.requires_grad]
        take = self._by_vmap if self.way == VMAP else self._one_by_one
        with _untouched(self._model):
            found = take(objective, batch, trained)
        return [(p, Kept(g)) for p, g in zip(trained, found, strict=True) if g is not None]

    def _tried(self, objective: Objective, example: Any, seed: int) -> Gradients:
        seed_everything(seed)
        found = {id(p): s.written_out() for p, s in self.slots(objective, example, count(example))}
        return [found.get(id(p)) for p in self._parameters.values()]

    def _by_vmap(self, objective: Objective, batch: Any, trained: list[Tensor]) -> Gradients:
        names = {id(p): name for name, p in self._model.named_parameters()}
        if any(p._backward_hooks or id(p) not in names for p in trained):
            raise UnsupportedModelError("weights=with hooks: go one by one; vmap takes copies.")
        weights = {names[id(p)]: p.detach() for p in trained}

        def loss_of(weights: dict[str, Tensor], *tensors: Tensor) -> Tensor:
            left = iter(tensors)
            record = each(lambda _: next(left).unsqueeze(0), batch)
            with _reparametrize_module(self._model, weights, tie_weights=True):
                return _one_loss(objective(record))

        with warnings.catch_warnings(), _Apart() as one_pass, _OneAtATime():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            tensors = [one_pass.own(tensor) for tensor in tensors_in(batch)]
            dims = (None, *[0] * len(tensors))
            found = vmap(grad(loss_of), dims, randomness="different")(weights, *tensors)
        # A weight that no record uses has zeros that are the same for all and of no pass.
        return [g if _pass_of(g) or bool(g[0].any()) else None for g in found.values()]

    def _one_by_one(self, objective: Objective, batch: Any, trained: list[Tensor]) -> Gradients:
        records, found = count(batch), dict[int, Tensor]()
        before, numbers = self._of_made_up(objective, trained), _numbers(self._model)
        for i in range(records):
            record = rows(batch, slice(i, i + 1))
            for j, gradient in enumerate(_gradients(objective, record, trained)):
                if gradient is not None:
                    if j not in found:
                        found[j] = trained[j].new_zeros(records, *trained[j].shape)
                    found[j][i] = gradient
            if (left := _numbers(self._model)) != numbers:
                moved = [key.lstrip(".") for key in left if left[key] != numbers.get(key)]
                raise _carried(f"attributes {moved[:3]}")
        if not _close(self._of_made_up(objective, trained), before, 1e-4):
            raise _carried("something outside of the modules")
        return [found.get(j) for j in range(len(trained))]

    def _of_made_up(self, objective: Objective, trained: list[Tensor]) -> Gradients:
        """The gradients of a record that is always the same, with the same random numbers."""
        with global_seeds_kept():
            seed_everything(_SEED)
            return _gradients(objective, self._made_up, trained)


def _gradients(objective: Objective, record: Any, trained: list[Tensor]) -> Gradients:
    """The gradients of a batch of one; None for a weight that its loss does not use."""
    with torch.enable_grad(), _Apart() as one_pass:
        loss = _one_loss(objective(each(one_pass.own, record)))
        if not loss.requires_grad:
            return [None] * len(trained)
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        return [g.to_dense() if g is not None and g.is_sparse else g for g in found]


def _one_loss(losses: Any) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape not in ((1,), ()):
        form = f"{losses.ndim} axes" if isinstance(losses, Tensor) else type(losses).__name__
        raise UnsupportedModelError(
            f"loss={form}: must be one number where the batch is one record; use reduction='none' "
            "and average over everything but the records."
        )
    return losses.reshape(())


def _close(found: Gradients, wanted: Gradients, tolerance: float) -> bool:
    """Whether gradients are the same up to a part of the largest number; None stands for zeros."""
    for pair in zip(found, wanted, strict=True):
        given = [g for g in pair if g is not None and g.numel()]
        if given:
            a, b = (torch.zeros_like(given[0]) if g is None else g for g in pair)
            most = tolerance and max(tolerance, 8 * torch.finfo(b.dtype).eps)
            size = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max())
            if not torch.allclose(a, b, rtol=most, atol=most * size, equal_nan=True):
                return False
    return True


def _carried(what: str) -> IsolationError:
    return IsolationError(
        f"{what}=changed by a record: must be as it was when the next one comes, which would "
        "depend on it; keep no counts, averages or lists in the forward pass and the loss."
    )


def _numbers(model: nn.Module) -> dict[str, Any]:
    """Numbers and texts in the attributes of modules, and how much is in their lists."""
    return {
        f"{name}.{key}": value if isinstance(value, _PLAIN) else len(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, (*_PLAIN, list, dict, set, deque))
    }


_PLAIN = (int, float, str, np.generic)


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return itertools.chain(model.named_parameters(), model.named_buffers())


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Refuse writes to weights and buffers, and others in their places."""
    held = dict(_state(model))
    before = {name: (id(t), version(t)) for name, t in held.items()}
    try:
        yield
    finally:
        now = {name: (id(t), version(t)) for name, t in _state(model) if _pass_of(t) is None}
        if names := [name for name in {**before, **now} if now.get(name) != before.get(name)]:
            raise IsolationError(
                f"weights or buffers={names[:3]}: must not be written in a forward pass or the "
                "loss, and were; take the write out (running statistics, counters, max_norm), put "
                "the layer in eval mode, or use steppe.fix(model). After a step do not publish the "
                "model."
            )


def _home(tensor: Tensor) -> Any:
    """What carries a tensor's mark: its memory, which views share. Some kinds have none to show."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return tensor


def _mark(tensor: Tensor, one_pass: _Apart | None) -> None:
    _home(tensor)._steppe_pass = one_pass


def _pass_of(tensor: Tensor) -> _Apart | None:
    """The pass that filled a tensor from records."""
    return getattr(_home(tensor), "_steppe_pass", None)


class _Apart(TorchDispatchMode):
    """Follows what one pass makes from its records, also backwards, and refuses what others made.

    It sees torch's innermost operations, below autograd and vmap.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, and asks it at every operation

    def own(self, tensor: Tensor) -> Tensor:
        """A tensor of the records as the pass may have it: a marked copy."""
        copy = tensor.detach().clone()
        _mark(copy, self)
        return copy

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        passes = {_pass_of(t) for t in _collected((*args, *kwargs.values()), [])} - {None}
        if passes - {self}:
            raise IsolationError(
                f"operation={func}: must work on one record, and met a tensor that an earlier pass "
                "made from others; keep nothing made from records in modules, lists or globals."
            )
        output = func(*args, **kwargs)
        if passes and func.overloadpacket not in _BLANK:
            for tensor in _collected((output, *_written(func, args, kwargs)), []):
                _mark(tensor, self)
        return output


def _collected(values: Iterable[Any], tensors: list[Tensor]) -> list[Tensor]:
    """The tensors in arguments; for each operation, where a generator takes twice as long."""
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            _collected(value, tensors)
    return tensors


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation writes to."""
    if func.overloadpacket in _BATCH_NORMS and args[5]:
        return list(args[3:5])  # the schema is silent about running statistics
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in _places(func)]


_aten = torch.ops.aten
# What they make is the same for every record, and may be kept.
_BLANK = {getattr(_aten, f"{kind}_like") for kind in ("empty", "full", "ones", "zeros")}
_BLANK |= {getattr(_aten, f"new_{kind}") for kind in ("empty", "full", "ones", "zeros")}
_BATCH_NORMS = (_aten.native_batch_norm, _aten.cudnn_batch_norm, _aten.miopen_batch_norm)


@functools.cache
def _places(func: Any) -> list[tuple[int, str]]:
    return [(i, a.name) for i, a in enumerate(func._schema.arguments) if a.is_write]


class _OneAtATime(TorchFunctionMode):
    """Refuses calls by which vmap hands the whole batch to user code, or crashes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        what = args[0] if func is custom_function_call else func
        if func is custom_function_call:
            unfit = what.vmap is not torch.autograd.Function.vmap
        elif isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            unfit = not str(func).startswith(("aten.", "prims."))
        else:
            unfit = func in _UNFIT
        if unfit:
            raise UnsupportedModelError(f"operation={what}: goes one by one only.")
        return func(*args, **(kwargs or {}))


_UNFIT = (Tensor.data.__set__, Tensor.resize_, Tensor.resize_as_)  # type: ignore[attr-defined]
