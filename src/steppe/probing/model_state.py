"""The state of a model and the form of a batch; if one of them is new, the model is probed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from steppe.gradients import HOOKS_EVERYWHERE, hooks_of


def state_of(model: nn.Module) -> object:
    """Everything that code could change in a model between two steps, except values of weights.

    It contains the modules and weights themselves, because the address of a deleted one could be
    used again.
    """
    return (*map(tuple, HOOKS_EVERYWHERE), *map(_module_state, model.modules()))


def _module_state(module: nn.Module) -> object:
    kind, kept = type(module), vars(module)
    options = _OPTIONS if kind.__module__.startswith("torch.nn.") else _SWITCHES
    return (
        module,
        kind.forward,
        kept.get("forward"),
        # Including its mode. For functions their code, because a pass may create a new function
        # each time.
        *[
            value.__code__ if type(value) is FunctionType else value
            for value in kept.values()
            if type(value) in options
        ],
        *[name for name, buffer in kept["_buffers"].items() if buffer is not None],
        *[
            # Its address first, because different tensors must not be compared.
            (id(weight), weight, weight.dtype, weight.device, weight.shape)
            for weight in kept["_parameters"].values()
            if weight is not None and weight.requires_grad
        ],
        *chain(*hooks_of(module)),
    )


# Attributes that determine what a module does. Numbers are left out, because they may be counters
# or follow a schedule; integers of torch's layers are included.
_SWITCHES: frozenset[type] = frozenset((bool, str, FunctionType, MethodType, BuiltinFunctionType))
_OPTIONS = _SWITCHES | {int}


def form_of(batch: Any) -> object:
    """Everything about a batch except its values and the number of its records.

    Examples:
        >>> import torch
        >>> form_of((torch.zeros(7, 2), [3])) == form_of((torch.ones(0, 2), [4]))
        True
        >>> form_of(torch.zeros(7, 2)) == form_of(torch.zeros(7, 3))
        False
    """
    if isinstance(batch, Tensor):
        return batch.dtype, batch.device, tuple(batch.shape[1:])
    if isinstance(batch, tuple | list):
        return type(batch), *map(form_of, batch)
    if isinstance(batch, Mapping):
        return dict, *((key, form_of(item)) for key, item in batch.items())
    return type(batch)
