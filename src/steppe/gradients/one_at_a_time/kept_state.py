"""State that code stores in Python between passes: numbers, texts, iterators, generators.

It is searched for from a model and an objective: attributes, closures, defaults, containers,
classes and the globals that functions name. The state of torch, NumPy, Python's library and Steppe
is left out.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_PLAIN = (int, float, complex, str, bytes, np.generic, type(None))
_MOST = 100_000  # objects to search, for example of a data set in a closure
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "steppe"} - {"__main__"}


def kept_state(*roots: Any) -> dict[str, str]:
    """All plain values that can be reached, by path.

    Args:
        roots: a model, an objective.

    Examples:
        >>> import itertools
        >>> def counting(calls):
        ...     return lambda: calls
        >>> calls = itertools.count()
        >>> before = kept_state(counting(calls))
        >>> _ = next(calls)
        >>> changed(before, kept_state(counting(calls)))
        ['0.calls']
    """
    found: dict[str, str] = {}
    seen: dict[int, Any] = {}  # with the objects, because the id of a deleted one may be used again
    todo = deque((str(i), root) for i, root in enumerate(roots))
    while todo and len(seen) < _MOST:
        path, value = todo.popleft()
        if isinstance(value, _PLAIN):
            found[path] = repr(value)
        elif id(value) not in seen:
            seen[id(value)] = value
            if (own := _own(value)) is not None:
                found[path] = own
            todo.extend((f"{path}.{name}", part) for name, part in _parts(value))
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The paths of all differences."""
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def _own(value: Any) -> str | None:
    """The plain value of an object itself, without its parts."""
    if isinstance(value, torch.Generator):
        return _digest(value.get_state().numpy().tobytes())
    if isinstance(value, random.Random):
        return _digest(repr(value.getstate()).encode())
    if isinstance(value, np.random.Generator):
        return _digest(repr(value.bit_generator.state).encode())
    if isinstance(value, np.random.RandomState):
        return _digest(repr(value.get_state()).encode())
    if isinstance(value, np.ndarray):
        return _digest(value.tobytes())
    if isinstance(value, list | tuple | dict | set | frozenset | deque | bytearray):
        return str(len(value))
    if isinstance(value, types.GeneratorType):
        return "ended" if value.gi_frame is None else str(value.gi_frame.f_lasti)
    if isinstance(value, Iterator) and type(value).__module__ in ("itertools", "builtins"):
        return _place(value)
    return None


def _place(iterator: Any) -> str:
    """The position of an iterator of Python, from how it would be pickled."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return repr(iterator.__reduce__()[1:])
    except TypeError:
        return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in list(value.items()):
            yield str(key) if isinstance(key, _PLAIN) else type(key).__name__, part
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((str(i), part) for i, part in enumerate(list(value)))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), ("func", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.GeneratorType):
        yield "frame", {} if value.gi_frame is None else dict(value.gi_frame.f_locals)
        yield "from", value.gi_yieldfrom
    elif isinstance(value, type):
        if not _of_library(value.__module__):
            yield from ((n, p) for n, p in vars(value).items() if not n.startswith("__w"))
            yield "bases", value.__bases__
    elif isinstance(value, staticmethod | classmethod):
        yield "func", value.__func__
    elif isinstance(value, property):
        yield from (("get", value.fget), ("set", value.fset))
    elif isinstance(value, torch.Tensor):
        yield "hooks", value._backward_hooks
    elif not isinstance(value, types.ModuleType):
        yield from _of_object(value)


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    home = type(value).__module__
    if _of_library(home) and home.partition(".")[0] not in ("steppe", "torch", "collections"):
        return  # locks, files, loggers
    yield from list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
    yield type(value).__name__, type(value)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = _names(function.__code__)
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from (("defaults", function.__defaults__), ("kwdefaults", function.__kwdefaults__))
    yield "attributes", vars(function)
    if _of_library(function.__module__):
        return
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif not _of_library(value.__name__):
            yield from ((f"{name}.{n}", vars(value)[n]) for n in names & vars(value).keys())


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function uses, also in nested functions."""
    inside = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inside)


def _of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
