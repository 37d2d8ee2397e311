"""Blocks that change a model's modes and restore them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every module's own mode comes back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, so that a forward pass can be replayed with one record less."""
    kept: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        name = "p" if isinstance(module, _DropoutNd) else "dropout"
        if isinstance(value := getattr(module, name, None), float):
            kept.append((module, name, value))
            setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
