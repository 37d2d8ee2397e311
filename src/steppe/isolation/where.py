"""Where in the user's code an operation was called: the layer and the line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class Layers:
    """Knows which module of a model is running."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {
            id(module): f"{name or 'model'} ({type(module).__name__})"
            for name, module in model.named_modules()
        }
        self._inside: list[str] = []

    @property
    def now(self) -> str | None:
        """The innermost module that is running, by name; None outside of all."""
        return self._inside[-1] if self._inside else None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block in which torch tells when a module begins and ends."""
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


def line_of_user() -> str | None:
    """File and line of the innermost call that is not in torch or in this library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES) and not name.startswith("<"):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
