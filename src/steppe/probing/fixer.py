"""Replaces layers that cannot be trained privately by similar ones that can."""

from __future__ import annotations

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from steppe.errors import UnsupportedModelError
from steppe.utils import validation

_LARGEST_GROUP_COUNT = 32
_SMALLEST_VECTOR_GROUP = 16
_TORCHS_OWN = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
_KNOWN = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def fix(model: nn.Module) -> nn.Module:
    """A copy of the model without batch statistics.

    Batch normalisation becomes group normalisation with gcd(32, channels) groups, fewer for
    `BatchNorm1d`, and keeps its trained scale and shift. Tied weights stay tied. Instance
    normalisation stops tracking running statistics. Build the optimizer from the copy.

    Args:
        model: is not changed.

    Returns:
        The copy. The names of all weights are the same.

    Raises:
        UnsupportedModelError: a batch normalisation layer has something that torch's does not have,
            which would be lost: its own forward pass, hooks, parametrisations, more weights.

    Examples:
        >>> fixed = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
        >>> fixed[1]  # doctest: +ELLIPSIS
        GroupNorm(8, 8, eps=1e-05, affine=True...)
    """
    if not isinstance(model, nn.Module):
        raise validation.fail(
            "model", type(model).__name__, "must be a torch nn.Module", "pass one"
        )
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm | _InstanceNorm):
            _require_replaceable(path or "model", module)
    root = nn.ModuleDict({"model": copy.deepcopy(model)})
    fixed: dict[int, nn.Module] = {}  # one layer may have several names
    for module in list(root.modules()):
        for name, child in module._modules.items():
            if isinstance(child, _BatchNorm):
                module._modules[name] = fixed.setdefault(id(child), _group_norm(child))
            elif isinstance(child, _InstanceNorm):
                _forget_statistics(child)
    return root["model"]


def _require_replaceable(path: str, norm: _BatchNorm | _InstanceNorm) -> None:
    """Reject a layer with something that the replacement would lose."""
    if isinstance(norm, LazyModuleMixin) and norm.has_uninitialized_params():
        raise _irreplaceable(
            path, norm, "know its channels", "run the model on one synthetic batch first"
        )
    if isinstance(norm, _InstanceNorm):
        return  # keeps all but the statistics
    if is_parametrized(norm):
        remedy = "call torch.nn.utils.parametrize.remove_parametrizations first"
        raise _irreplaceable(path, norm, "have plain weights", remedy)
    if type(norm).forward not in _TORCHS_OWN:
        remedy = "put a layer in its place that treats every record alone, such as nn.GroupNorm"
        raise _irreplaceable(path, norm, "compute what torch's own layer does", remedy)
    if more := {*norm._parameters, *norm._buffers, *norm._modules} - _KNOWN:
        remedy = f"take {', '.join(sorted(more)[:3])} out, or replace the layer yourself"
        raise _irreplaceable(path, norm, "hold no more than torch's own layer does", remedy)
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
        raise _irreplaceable(path, norm, "have no hooks", "register them on the fixed copy")


def _irreplaceable(path: str, norm: nn.Module, rule: str, remedy: str) -> UnsupportedModelError:
    kind = type(norm).__name__
    return UnsupportedModelError(f"layer {path!r}={kind}: must {rule} to be fixed; {remedy}.")


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    groups = math.gcd(_LARGEST_GROUP_COUNT, channels)
    if isinstance(norm, nn.BatchNorm1d):
        # On vectors a group is all that is normalised: a few numbers would lose their information,
        # and a single one would become zero.
        groups = math.gcd(groups, max(1, channels // _SMALLEST_VECTOR_GROUP))
    group_norm = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        # The same weights, because other layers may share them.
        group_norm.weight, group_norm.bias = norm.weight, norm.bias
    return group_norm.train(norm.training)


def _forget_statistics(norm: _InstanceNorm) -> None:
    norm.track_running_stats = False
    norm.running_mean = norm.running_var = norm.num_batches_tracked = None
