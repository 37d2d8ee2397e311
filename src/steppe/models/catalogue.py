"""Networks by name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from steppe.models import (
    dpnas,
    patches,
    plain_cnn,
    regression,
    resnet,
    resnet20,
    scattering,
    tables,
    wide_resnet,
)
from steppe.models.efficientnet_lite import EfficientNetLite0
from steppe.models.vision_transformer import VisionTransformer
from steppe.utils import validation

_CONSTRUCTORS: dict[str, Callable[..., nn.Module]] = {
    "linear": regression.linear_regression,
    "logistic": regression.logistic_regression,
    "mlp": tables.mlp,
    "embedding-mlp": tables.embedding_mlp,
    "scattering-linear": scattering.scattering_linear,
    "patches-linear": patches.patches_linear,
    "cnn-relu-26k": plain_cnn.cnn_relu_26k,
    "cnn-tanh-26k": plain_cnn.cnn_tanh_26k,
    "cnn-tanh-26k-ftrl": plain_cnn.cnn_tanh_26k_ftrl,
    "cnn-opacus-cifar": plain_cnn.cnn_opacus_cifar,
    "cnn-selu-cifar": plain_cnn.cnn_selu_cifar,
    "cnn-tanh-cifar": plain_cnn.cnn_tanh_cifar,
    "cnn-tanh-cifar-ftrl": plain_cnn.cnn_tanh_cifar_ftrl,
    "dpnas-mnist": dpnas.dpnas_mnist,
    "dpnas-fmnist": dpnas.dpnas_fmnist,
    "dpnas-cifar": dpnas.dpnas_cifar,
    "gn-resnet-10": resnet.gn_resnet10,
    "gn-resnet-18": resnet.gn_resnet18,
    "gn-resnet-50": resnet.gn_resnet50,
    "resnet-20": resnet20.resnet20,
    "wrn-16-4": wide_resnet.wrn_16_4,
    "wrn-28-10": wide_resnet.wrn_28_10,
    "efficientnet-lite0": EfficientNetLite0,
    "vit": VisionTransformer,
}


def names() -> tuple[str, ...]:
    """The names that `create` knows, from small to large by family.

    Examples:
        >>> names()[:3]
        ('linear', 'logistic', 'mlp')
    """
    return tuple(_CONSTRUCTORS)


def create(name: str, **options: Any) -> nn.Module:
    """A fresh network by its name.

    Args:
        name: one of `names()`.
        options: arguments of the constructor, for instance `classes=100`.

    Returns:
        The network with its paper's start, drawn from torch's global random state.

    Examples:
        >>> sum(p.numel() for p in create("resnet-20", classes=100).parameters())
        274196
    """
    constructor = _constructor(name)
    known = inspect.signature(constructor).parameters
    for option, value in options.items():
        if option not in known:
            listed = ", ".join(known)
            raise validation.fail(option, value, f"is not an option of {name!r}", f"use {listed}")
    return constructor(**options)


def parameters(name: str) -> tuple[str, ...]:
    """The options of a network's constructor.

    Examples:
        >>> parameters("logistic")
        ('features', 'classes')
    """
    return tuple(inspect.signature(_constructor(name)).parameters)


def needs(name: str, option: str) -> bool:
    """Whether a network has an option that must not be None.

    Examples:
        >>> needs("logistic", "classes"), needs("mlp", "classes"), needs("linear", "classes")
        (True, False, False)
    """
    found = inspect.signature(_constructor(name)).parameters.get(option)
    return found is not None and found.default is not None


def sizes(shape: Sequence[int], classes: int | None) -> dict[str, int]:
    """The sizes of a record, by the argument names of constructors.

    Args:
        shape: of a record.
        classes: number of labels, or None.

    Examples:
        >>> sizes((4,), 2)
        {'features': 4, 'classes': 2}
    """
    found = {"features": math.prod(shape)}
    if len(shape) == 3:
        found |= {"channels": shape[0], "colours": shape[0], "side": shape[1], "size": shape[1]}
    if classes is not None:
        found["classes"] = classes
    return found


def _constructor(name: str) -> Callable[..., nn.Module]:
    if name not in _CONSTRUCTORS:
        near = difflib.get_close_matches(str(name), _CONSTRUCTORS, n=1, cutoff=0.0)[0]
        listed = ", ".join(_CONSTRUCTORS)
        raise validation.fail("name", name, f"must be one of {listed}", f"did you mean {near!r}?")
    return _CONSTRUCTORS[name]
