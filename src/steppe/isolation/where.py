"""Finds the layer and the line of the user's code that called an operation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

_PASS = str(Path(__file__).with_name("trace.py"))
# Not the user's: torch, this library, and generated code. Code of a session is `<stdin>`.
_MADE = ("<frozen ", "<string>", "<eval_with_key>")
_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), *_MADE)
_LAYER = "steppe layer"


class Layers:
    """Tracks which module of a model is running."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {
            id(module): f"{name or 'model'} ({type(module).__name__})"
            for name, module in model.named_modules()
        }
        self._inside: list[str] = []

    @property
    def now(self) -> str | None:
        """The name of the innermost module that is running; None if there is none."""
        return self._inside[-1] if self._inside else None

    def remember(self, made: Any) -> None:
        """Store the current layer at the graph nodes of its results."""
        parts = made if isinstance(made, tuple | list) else (made,)
        for tensor in parts if self._inside else ():
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                _metadata(tensor.grad_fn).setdefault(_LAYER, self._inside[-1])

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block in which the beginning and end of modules are tracked."""
        handles = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            self._inside.clear()
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        del args
        self._inside.append(self._names.get(id(module), type(module).__name__))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        if self._inside:
            self._inside.pop()


def layer_on_the_way_back() -> str | None:
    """In a backward pass, the layer of the current graph node; None if it is not known."""
    node = torch._C._current_autograd_node()
    after = [] if node is None else [one for one, _ in node.next_functions if one is not None]
    found = (_metadata(one).get(_LAYER) for one in (node, *after) if one is not None)
    return next((layer for layer in found if layer is not None), None)


def _metadata(node: Any) -> dict[str, str]:
    """The metadata of a graph node, which torch's types declare as a method."""
    kept: dict[str, str] = node.metadata
    return kept


def line_of_user() -> str | None:
    """File and line of the innermost call that is not in torch or in this library.

    None if a pass runs no other code, as with torch's own layers and losses.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _PASS and frame.f_code.co_name == "trace":  # its caller is not in the pass
            return None
        if not name.startswith(_OTHERS):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
