"""How a module may show values to the loop beside what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as of_torch

from steppe.compat.uncopied_hook import Hook
from steppe.gradients import is_marked


def shown_by(module: nn.Module) -> str:
    """By what a module that has run may have shown values: a hook, or an attribute that it has set;
    empty for nothing."""
    if of_torch._global_forward_hooks or of_torch._global_forward_pre_hooks:
        return "a hook of all modules"
    for name, layer in module.named_modules():
        hooks = (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values())
        if any(not isinstance(hook, Hook) for hook in hooks):
            return f"a hook of {name or 'the module'}"
        for key, value in vars(layer).items():
            if any(map(is_marked, _tensors_of(value))):
                return f"{name or 'module'}.{key}"
    return ""


def _tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (item for item in value if isinstance(item, Tensor))
    elif type(value) is dict:
        yield from (item for item in value.values() if isinstance(item, Tensor))
