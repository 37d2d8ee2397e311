"""Batch normalisation of a start: its statistics are kept, as a layer of its own or folded."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from steppe.errors import UnsupportedModelError
from steppe.models import FrozenBatchNorm as FrozenBatchNorm
from steppe.models import set_module
from steppe.utils.module_modes import evaluating

_CLOSE = 1e-3  # of the outputs before and after folding, relative to the largest


def freeze_batch_norm(model: nn.Module) -> nn.Module:
    """Keep the statistics of every batch normalisation; scales and shifts stay trainable.

    In training mode batch normalisation mixes records, so private training refuses it. `steppe.fix`
    puts group normalisation in its place, which a start has not learnt.

    Args:
        model: changed in place. Make the optimizer afterwards.

    Examples:
        >>> model = freeze_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
        >>> model.train()[1]
        FrozenBatchNorm(4, eps=1e-05)
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, _BatchNorm):
            if module.running_mean is None:
                raise UnsupportedModelError.about(
                    "layer",
                    name,
                    "has no statistics of its own (track_running_stats=False), and those of a "
                    "batch mix records",
                    "replace it with steppe.fix(model)",
                )
            set_module(model, name, FrozenBatchNorm.of(module))
    return model


def fold_batch_norm(model: nn.Module, example: Tensor | None = None) -> nn.Module:
    """Fold every batch normalisation into the convolution or linear layer before it.

    That leaves fewer layers, and weights whose noise is not scaled up by the normalisation. The
    layer before it is the one that the same module registers just before it; where there is none,
    the statistics are kept as by `freeze_batch_norm`.

    Args:
        model: changed in place. Make the optimizer afterwards.
        example: inputs on which the outputs before and after are compared; None to compare nothing.

    Raises:
        UnsupportedModelError: the outputs differ, so the order of the layers is another.
    """
    freeze_batch_norm(model)
    whole = copy.deepcopy(model) if example is not None else None
    for parent_name, parent in list(model.named_modules()):
        before: tuple[str, nn.Module] | None = None
        for name, child in list(parent.named_children()):
            if isinstance(child, FrozenBatchNorm) and before is not None:
                folded = _folded(before[1], child)
                if folded is not None:
                    prefix = f"{parent_name}." if parent_name else ""
                    set_module(model, f"{prefix}{before[0]}", folded)
                    set_module(model, f"{prefix}{name}", nn.Identity())
            before = (name, child)
    if whole is not None and example is not None:
        _require_same(whole, model, example)
    return model


def _folded(layer: nn.Module, norm: FrozenBatchNorm) -> nn.Module | None:
    """A layer that also normalises; None if it is of another kind or width."""
    plain = nn.BatchNorm2d(norm.num_features, norm.eps, affine=norm.weight is not None).eval()
    plain.to(norm.running_mean)
    plain.load_state_dict(norm.state_dict(), strict=False)
    trained = any(weight.requires_grad for weight in layer.parameters())
    found: nn.Module
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        if layer.out_channels != norm.num_features:
            return None
        found = fuse_conv_bn_eval(layer.eval(), plain)
    elif type(layer) is nn.Linear and layer.out_features == norm.num_features:
        found = fuse_linear_bn_eval(layer.eval(), plain)
    else:
        return None
    return found.requires_grad_(trained)


@torch.no_grad()
def _require_same(whole: nn.Module, folded: nn.Module, example: Tensor) -> None:
    with evaluating(whole), evaluating(folded):
        one, other = whole(example), folded(example)
    largest = float(one.abs().max())
    if float((one - other).abs().max()) > _CLOSE * max(largest, 1e-6):
        raise UnsupportedModelError.about(
            "model",
            type(whole).__name__,
            "computes something else after folding: a batch normalisation does not follow the "
            "layer that is registered before it",
            "keep its statistics with freeze_batch_norm(model)",
        )
