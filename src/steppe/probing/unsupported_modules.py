"""Rejects compiled and scripted modules, whose operations cannot be followed one by one."""

from __future__ import annotations

import torch
from torch import nn

from steppe.utils.validation import fail


def require_uncompiled(model: nn.Module) -> None:
    """Reject compiled and scripted modules, because the engine follows every call of torch."""
    for name, module in model.named_modules():
        # By name, because importing the compiler takes seconds; `compile()` only sets an attribute.
        wrapped = any(kind.__module__.startswith("torch._dynamo") for kind in type(module).__mro__)
        in_place = getattr(module, "_compiled_call_impl", None) is not None
        if wrapped or in_place or isinstance(module, torch.jit.ScriptModule):
            raise fail(
                f"module {name!r}" if name else "model",
                f"{type(module).__name__}, compiled",
                "must be plain, since its gradients are followed operation by operation",
                "give the module as it is before torch.compile or torch.jit, and compile it after "
                "training",
            )
