"""`make_functional`, where Opacus has it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def make_functional(
    mod: nn.Module, disable_autograd_tracking: bool = False
) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """A module as a function of its weights, and the weights.

    Args:
        mod: the module.
        disable_autograd_tracking: True for weights that need no gradient.

    Examples:
        >>> layer = nn.Linear(2, 1)
        >>> function, weights = make_functional(layer)
        >>> torch.equal(function(weights, torch.ones(3, 2)), layer(torch.ones(3, 2)))
        True
    """
    names = [name for name, _ in mod.named_parameters()]
    weights = tuple(mod.parameters())
    stateless = copy.deepcopy(mod).to("meta")

    def function(given: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(names, given, strict=True))
        return torch.func.functional_call(stateless, named, args, kwargs)

    return function, tuple(w.detach() for w in weights) if disable_autograd_tracking else weights
