"""Whose Python does a model or a loss run, and does it draw random numbers?"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as all_modules


def of_torch(code: Any) -> bool:
    """Whether a module or function runs nothing but torch's own Python.

    Torch's layers and losses draw random numbers from torch's generators alone. Code of anybody
    else, in a module, a hook or a function that a module was given, may draw from others.

    Examples:
        >>> from torch.nn import functional as F
        >>> of_torch(nn.Sequential(nn.Linear(2, 2), nn.Dropout())), of_torch(F.cross_entropy)
        (True, True)
        >>> of_torch(lambda output, target: output - target)
        False
    """
    if isinstance(code, nn.Module):
        return not any(_EVERYWHERE) and all(map(_module_of_torch, code.modules()))
    if isinstance(code, functools.partial):
        given = (*code.args, *code.keywords.values())
        return of_torch(code.func) and not any(map(callable, given))
    # Not by its `__module__`, which a function of the user's may have copied (`functools.wraps`).
    return getattr(F, getattr(code, "__name__", ""), None) is code


def draws_nothing(code: Any) -> bool:
    """Whether a module or function is known to draw no random numbers.

    Asked in every step, of the model as it is then, so it takes a few microseconds for a small one.

    Examples:
        >>> draws_nothing(nn.Sequential(nn.Linear(2, 2), nn.Tanh())), draws_nothing(F.mse_loss)
        (True, True)
        >>> draws_nothing(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
        False
    """
    if not isinstance(code, nn.Module):
        function = code.func if isinstance(code, functools.partial) else code
        return of_torch(code) and function in _STILL_FUNCTIONS  # others may have no hash
    if any(_EVERYWHERE):
        return False
    waiting: list[nn.Module | None] = [code]
    for module in waiting:  # which grows meanwhile
        if module is None:
            continue
        kind = type(module)
        known = _STILL_MODULES.get(kind)
        if known is None or known is not kind.forward or not _module_of_torch(module):
            return False
        waiting += module._modules.values()
    return True


def _module_of_torch(module: nn.Module) -> bool:
    kept = vars(module)
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        # Such as an activation that the user gave, or another `forward`.
        and not any(map(callable, kept.values()))
        # A weight may come with operations of its own.
        and _OF_TORCH.issuperset(map(type, kept["_parameters"].values()))
        and not kept["_forward_hooks"]
        and not kept["_forward_pre_hooks"]
        and not kept["_backward_hooks"]
        and not kept["_backward_pre_hooks"]
    )


_OF_TORCH = {nn.Parameter, nn.UninitializedParameter, torch.Tensor, type(None)}
_EVERYWHERE: tuple[dict[int, Any], ...] = (
    all_modules._global_forward_hooks,
    all_modules._global_forward_pre_hooks,
    all_modules._global_backward_hooks,
    all_modules._global_backward_pre_hooks,
)

# What the smallest models consist of, whose steps are so short that secret numbers nobody asks for
# would take a twentieth of them. Anything else may draw, as far as a step knows.
_STILL_MODULES: dict[type[nn.Module], Any] = {
    kind: kind.forward  # as torch wrote it
    for kind in (
        nn.Sequential,
        nn.Identity,
        nn.Flatten,
        nn.Unflatten,
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.GroupNorm,
        nn.LayerNorm,
        nn.RMSNorm,
        nn.Embedding,
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.SELU,
        nn.GELU,
        nn.SiLU,
        nn.Tanh,
        nn.Sigmoid,
        nn.Softplus,
        nn.Softmax,
        nn.LogSoftmax,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.MaxPool3d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.AvgPool3d,
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
        nn.CrossEntropyLoss,
        nn.NLLLoss,
        nn.MSELoss,
        nn.L1Loss,
        nn.HuberLoss,
        nn.SmoothL1Loss,
        nn.BCELoss,
        nn.BCEWithLogitsLoss,
    )
}
_STILL_FUNCTIONS: frozenset[Any] = frozenset(
    (
        F.cross_entropy,
        F.nll_loss,
        F.mse_loss,
        F.l1_loss,
        F.huber_loss,
        F.smooth_l1_loss,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
    )
)
