"""Processes many records by `torch.func.vmap`, so that the user's code sees one record.

vmap passes one record to user code, with few exceptions: code below vmap, and code with its own
vmap rule, receives all records. Such code is rejected here. torch also allows a tensor that a
module stored from one batch to be combined with the next batch, record by record, without an error.
Therefore memory that is filled from records is marked with the number of the pass, and operations
on memory of another pass are rejected.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _get_dispatch_stack_at,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._functorch import autograd_function as of_functions
from torch._functorch import predispatch
from torch._functorch.autograd_function import custom_function_call
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as of_dispatch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.randomness import one_at_a_time


@contextmanager
def one_pass() -> Iterator[Apart]:
    """A block for one vmap, in which code that would receive the whole batch is rejected.

    Yields:
        The object that marks the records.
    """
    with Apart() as apart, _OneAtATime(), whole_batch_refused():
        yield apart
        apart.require_no_failure()


@contextmanager
def whole_batch_refused() -> Iterator[None]:
    """A block in which no dispatch mode and no vmap rule of the user's receives the batch.

    Raises:
        UnsupportedModelError: one is entered or called.
    """
    thread = threading.get_ident()
    with one_at_a_time():  # the functions replaced below belong to the whole process
        push, info = of_dispatch._push_mode, of_functions.VmapInfo

        def pushed(mode: Any) -> None:
            if threading.get_ident() == thread:
                raise _unfit(f"mode={type(mode).__name__}")
            push(mode)

        def told(*args: Any, **kwargs: Any) -> Any:
            """Asked just before the batch is handed to a vmap rule that somebody wrote."""
            if threading.get_ident() == thread:
                raise _unfit("operation=with a vmap rule of its own")
            return info(*args, **kwargs)

        vars(of_dispatch)["_push_mode"], vars(of_functions)["VmapInfo"] = pushed, told
        try:
            yield
        finally:
            vars(of_dispatch)["_push_mode"], vars(of_functions)["VmapInfo"] = push, info


def require_no_modes() -> None:
    """Reject modes around a step, because they receive the batch before it is split."""
    modes = [_get_dispatch_stack_at(i) for i in range(_len_torch_dispatch_stack())]
    modes += [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]
    names = [type(m).__name__ for m in modes if not isinstance(m, DeviceContext)]
    if names:
        raise UnsupportedModelError(
            f"mode={names[0]} around make_private or a step: must be off, because it is handed the "
            "whole batch; enter it in the forward pass."
        )


def require_torchs_kernels() -> None:
    """Reject replaced kernels of torch's operations, because vmap passes them the whole batch."""
    rules = getattr(predispatch, "VMAP_DECOMPOSITIONS_LIB", None)  # torch's own, loaded when needed
    for name in torch.library._impls - (set() if rules is None else rules._op_impls):
        space, _, key = name.partition("/")
        if space == "aten" and not key.endswith("/Meta") and key not in _OF_TORCH:
            raise _unfit(f"kernel={key}")


# Kernels that torch itself writes in Python.
_OF_TORCH = ("linalg_lu_solve.out/MPS", "_foreach_mm/CUDA")


def _unfit(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{what}: is handed the whole batch, and goes one by one only.")


def _home(tensor: Tensor) -> Any:
    """The object that has a tensor's mark: its memory, which views share. Some kinds have none."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return tensor


def mark(tensor: Tensor, one_pass: Apart | None) -> None:
    _home(tensor)._steppe_pass = one_pass


def pass_of(tensor: Tensor) -> Apart | None:
    """The pass that filled a tensor from records."""
    return getattr(_home(tensor), "_steppe_pass", None)


class Apart(TorchDispatchMode):
    """Marks tensors that a pass makes from its records, and rejects those of other passes.

    It sees torch's lowest operations, below autograd and vmap.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._failed: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, and asks it at every operation

    def own(self, tensor: Tensor) -> Tensor:
        """A marked copy of a tensor of the records."""
        copy = tensor.detach().clone()
        mark(copy, self)
        return copy

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._require_one_record(func, types)
        passes = {pass_of(t) for t in _collected((*args, *kwargs.values()), [])} - {None}
        if passes - {self}:
            raise IsolationError(
                f"operation={func}: must work on one record, and met a tensor that an earlier pass "
                "made from others; keep nothing made from records in modules, lists or globals."
            )
        try:
            output = func(*args, **kwargs)
        except Exception:
            self._failed = func
            raise
        if passes and func.overloadpacket not in _BLANK:
            for tensor in _collected((output, *_written(func, args, kwargs)), []):
                mark(tensor, self)
        return output

    def require_no_failure(self) -> None:
        """Reject a pass in which an operation failed and the code caught the error.

        An operation on all records fails because of one record's values, such as an index out of
        range. Code that catches the error could then treat all records differently.
        """
        if self._failed is not None:
            raise IsolationError(
                f"operation={self._failed}: must not fail on a record, and did, where the code "
                "catches the error; make sure of the values without it, by torch.where or clamp."
            )

    @staticmethod
    def _require_one_record(func: Any, types: Any) -> None:
        """Reject code below vmap, or where `_OneAtATime` was switched off."""
        for kind in types:
            if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
                raise _unfit(f"tensor={kind.__name__}")
        if func.namespace not in _SPACES or func.overloadpacket in _RESIZED:
            raise _unfit(f"operation={func}")
        if torch._C._is_torch_function_all_disabled():
            raise _unfit("DisableTorchFunction=on")


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
# Their results are the same for every record, and may be stored.
_BLANK = {getattr(_aten, f"{kind}_like") for kind in ("empty", "full", "ones", "zeros")}
_BLANK |= {getattr(_aten, f"new_{kind}") for kind in ("empty", "full", "ones", "zeros")}
_RESIZED = (_aten.resize_, _aten.resize_as_, _aten.set_)
_SPACES = ("aten", "prims")
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
            unfit = str(func).partition(".")[0] not in _SPACES
        else:
            unfit = func in _UNFIT
        if unfit:
            raise _unfit(f"operation={what}")
        return func(*args, **(kwargs or {}))


_UNFIT = (Tensor.data.__set__, Tensor.resize_, Tensor.resize_as_)  # type: ignore[attr-defined]
