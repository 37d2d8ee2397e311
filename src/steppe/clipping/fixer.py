"""Replace what cannot be trained privately by its nearest relative that can."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_LARGEST_GROUP_COUNT = 32


def fix(model: nn.Module) -> nn.Module:
    """A copy of the model without batch statistics.

    Batch normalisation becomes group normalisation with gcd(32, channels) groups and keeps its
    trained scale and shift. Instance normalisation stops tracking running statistics. Build the
    optimizer from the copy.

    Args:
        model: left as it is.

    Returns:
        The fixed copy; the names of all other weights stay the same.

    Examples:
        >>> fixed = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
        >>> fixed[1]  # doctest: +ELLIPSIS
        GroupNorm(8, 8, eps=1e-05, affine=True...)
    """
    fixed = copy.deepcopy(model)
    if isinstance(fixed, _BatchNorm):
        return _group_norm(fixed)
    for module in list(fixed.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                setattr(module, name, _group_norm(child))
            elif isinstance(child, _InstanceNorm):
                _forget_statistics(child)
    if isinstance(fixed, _InstanceNorm):
        _forget_statistics(fixed)
    return fixed


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    group_norm = nn.GroupNorm(
        math.gcd(_LARGEST_GROUP_COUNT, channels), channels, eps=norm.eps, affine=norm.affine
    )
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
