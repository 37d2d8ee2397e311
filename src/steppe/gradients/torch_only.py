"""Detects Python code in a model or loss that is not torch's own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as all_modules


def is_torch_only(code: Any, *, or_ours: bool = False) -> bool:
    """Whether a module or function runs nothing but torch's own Python.

    Args:
        code: the module or function.
        or_ours: whether the networks of `steppe.models` count as torch's.

    Torch's layers and losses draw random numbers from torch's generators alone. Other code, in
    a module, a hook or a function given to a module, may draw from other generators.

    Examples:
        >>> from torch.nn import functional as F
        >>> is_torch_only(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
        True
        >>> is_torch_only(F.cross_entropy)
        True
        >>> is_torch_only(lambda output, target: output - target)
        False
    """
    if isinstance(code, nn.Module):
        written_in = (_TORCH, _OURS) if or_ours else (_TORCH,)
        return not hooked_everywhere() and all(
            _is_plain_module(module, written_in) for module in code.modules()
        )
    if isinstance(code, functools.partial):
        given = (*code.args, *code.keywords.values())
        return is_torch_only(code.func) and not any(map(callable, given))
    # Not by its `__module__`, which a function of the user's may have copied (`functools.wraps`).
    return getattr(F, getattr(code, "__name__", ""), None) is code


def hooked_everywhere() -> bool:
    """Whether something is hooked to all modules there are."""
    return any(HOOKS_EVERYWHERE)


def _is_plain_module(module: nn.Module, written_in: tuple[str, ...]) -> bool:
    """Whether a module itself, apart from those inside it, runs Python of such packages alone."""
    kept = vars(module)
    return (
        type(module).__module__.startswith(written_in)
        # Such as an activation that the user gave, or another `forward`.
        and not any(map(callable, kept.values()))
        # A tensor may come with operations of its own, wherever it is kept.
        and _OF_TORCH.issuperset(map(type, kept["_parameters"].values()))
        and _OF_TORCH.issuperset(map(type, kept["_buffers"].values()))
        and all(type(v) in _OF_TORCH for v in kept.values() if isinstance(v, torch.Tensor))
        and not hooked(module)
    )


def hooked(module: nn.Module) -> bool:
    """Whether something is hooked to the passes of a module."""
    return any(hooks_of(module))


def hooks_of(module: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """What is hooked to the passes of a module, by torch's number for each hook."""
    kept = vars(module)
    return (
        kept["_forward_hooks"],
        kept["_forward_pre_hooks"],
        kept["_backward_hooks"],
        kept["_backward_pre_hooks"],
    )


_TORCH, _OURS = "torch.nn.modules.", "steppe.models."
_OF_TORCH = {nn.Parameter, nn.UninitializedParameter, torch.Tensor, type(None)}
HOOKS_EVERYWHERE: tuple[Mapping[int, Any], ...] = (
    all_modules._global_forward_hooks,
    all_modules._global_forward_pre_hooks,
    all_modules._global_backward_hooks,
    all_modules._global_backward_pre_hooks,
)
"""What is hooked to the passes of all modules there are, as `hooks_of` has it for one."""
