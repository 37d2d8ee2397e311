"""Replace what cannot be trained privately by its nearest relative that can."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_LARGEST_GROUP_COUNT = 32
_SMALLEST_VECTOR_GROUP = 16


def fix(model: nn.Module) -> nn.Module:
    """A copy of the model without batch statistics.

    Batch normalisation becomes group normalisation with gcd(32, channels) groups, fewer for
    `BatchNorm1d`, and keeps its trained scale and shift. Instance normalisation stops tracking
    running statistics. Build the optimizer from the copy.

    Args:
        model: left as it is.

    Returns:
        The fixed copy; the names of all other weights stay the same.

    Examples:
        >>> fixed = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
        >>> fixed[1]  # doctest: +ELLIPSIS
        GroupNorm(8, 8, eps=1e-05, affine=True...)
    """
    root = nn.ModuleDict({"model": copy.deepcopy(model)})
    fixed: dict[int, nn.Module] = {}  # one layer may have several names
    for module in list(root.modules()):
        for name, child in module._modules.items():
            if isinstance(child, _BatchNorm):
                module._modules[name] = fixed.setdefault(id(child), _group_norm(child))
            elif isinstance(child, _InstanceNorm):
                _forget_statistics(child)
    return root["model"]


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    groups = math.gcd(_LARGEST_GROUP_COUNT, channels)
    if isinstance(norm, nn.BatchNorm1d):
        # On vectors a group is all that is normalised: a handful of numbers would lose their
        # meaning, and a single one would become zero.
        groups = math.gcd(groups, max(1, channels // _SMALLEST_VECTOR_GROUP))
    group_norm = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        group_norm = group_norm.to(norm.weight)
        with torch.no_grad():
            group_norm.weight.copy_(norm.weight)
            group_norm.bias.copy_(norm.bias)
        group_norm.weight.requires_grad_(norm.weight.requires_grad)
        group_norm.bias.requires_grad_(norm.bias.requires_grad)
    return group_norm.train(norm.training)


def _forget_statistics(norm: _InstanceNorm) -> None:
    norm.track_running_stats = False
    norm.running_mean = norm.running_var = norm.num_batches_tracked = None
