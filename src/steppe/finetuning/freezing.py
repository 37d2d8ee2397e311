"""Which weights of a model are trained: by pattern, the head alone, or norms and biases."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from steppe.errors import UnsupportedModelError
from steppe.finetuning.patterns import chosen
from steppe.models import head_name

Patterns = str | Sequence[str]


def freeze(model: nn.Module, patterns: Patterns) -> nn.Module:
    """Freeze the weights that patterns cover; the others stay as they are.

    Args:
        model: changed in place. Make the optimizer afterwards.
        patterns: beginnings of weight names, such as "blocks.0", or wildcards, such as "*.bias".

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        >>> [name for name, p in freeze(model, "0").named_parameters() if p.requires_grad]
        ['1.weight', '1.bias']
    """
    weights = dict(model.named_parameters())
    for name in chosen("freeze", patterns, weights):
        weights[name].requires_grad_(False)
    return _require_some(model)


def train_only(model: nn.Module, patterns: Patterns) -> nn.Module:
    """Train the weights that patterns cover, and freeze all others.

    Args:
        model: changed in place. Make the optimizer afterwards.
        patterns: as for `freeze`.
    """
    weights = dict(model.named_parameters())
    trained = set(chosen("train", patterns, weights))
    for name, weight in weights.items():
        weight.requires_grad_(name in trained)
    return model


def train_head(model: nn.Module) -> nn.Module:
    """Train the last linear layer alone."""
    return train_only(model, head_name(model))


def train_norm_and_bias(model: nn.Module) -> nn.Module:
    """Train the normalisations, all biases and the head, and freeze all other weights (BitFit).

    Ben Zaken et al., BitFit: Simple Parameter-efficient Fine-tuning for Transformer-based Masked
    Language-models, 2022; with privacy, Bu et al., Differentially Private Bias-Term Fine-tuning of
    Foundation Models, 2024.

    Args:
        model: changed in place. Make the optimizer afterwards.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        >>> found = train_norm_and_bias(model).named_parameters()
        >>> [name for name, weight in found if weight.requires_grad]
        ['0.bias', '1.weight', '1.bias', '2.weight', '2.bias']
    """
    head = head_name(model)
    for name, module in model.named_modules():
        whole = name == head or "norm" in type(module).__name__.lower()
        for own, weight in module.named_parameters(recurse=False):
            weight.requires_grad_(whole or own.endswith("bias"))
    return _require_some(model)


def _require_some(model: nn.Module) -> nn.Module:
    if not any(weight.requires_grad for weight in model.parameters()):
        raise UnsupportedModelError.missing(
            "model", "leave some weights out of freeze", "has no weight left to train"
        )
    return model
