"""Whose Python does a model or a loss run?"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
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
        return not any(map(len, _EVERYWHERE)) and all(map(_module_of_torch, code.modules()))
    if isinstance(code, functools.partial):
        return of_torch(code.func)
    return getattr(code, "__module__", None) == "torch.nn.functional"


def _module_of_torch(module: nn.Module) -> bool:
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        # Such as an activation that the user gave, or another `forward`.
        and not any(map(callable, vars(module).values()))
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
    )


_EVERYWHERE: tuple[dict[int, Any], ...] = (
    all_modules._global_forward_hooks,
    all_modules._global_forward_pre_hooks,
    all_modules._global_backward_hooks,
    all_modules._global_backward_pre_hooks,
)
