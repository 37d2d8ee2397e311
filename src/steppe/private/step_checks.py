"""Checks before and after a private step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.errors import IsolationError, MisuseError
from steppe.gradients import is_marked
from steppe.plan import Plan

# Float32 products by device: torch's names of backends and operations.
_PRODUCTS = {
    "cpu": (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
    "cuda": (("cuda", "matmul"),),
}
# The same for models with trained convolutions. On CUDA their default is imprecise. Recurrent
# layers are computed as matrix products here.
_CONVOLUTIONS = {"cuda": (("cuda", "conv"),)}


def refuse_modes(engine: ClippedSum) -> None:
    """Reject modes of torch in which a step would fail, or would reveal a record by failing."""
    if engine.in_mixed_precision:  # layers would use types that were not probed
        raise MisuseError(
            "autocast=on: must be off around make_private and its steps; leave the block, and for "
            "speed in half precision use model.to(torch.bfloat16), whose gradients are clipped in "
            "float32."
        )
    refuse_coarse_products(engine)
    if torch.is_inference_mode_enabled():
        raise MisuseError(
            "inference_mode=on: must be off around make_private and its steps, which need "
            "gradients; leave the block."
        )
    if torch.is_anomaly_enabled():
        raise MisuseError(
            "detect_anomaly=on: must be off around make_private and its steps, because its error "
            "would reveal that a record's gradient is not finite; look for anomalies on synthetic "
            "data."
        )


def refuse_coarse_products(engine: ClippedSum) -> None:
    """Reject settings with which torch rounds float32 numbers before it multiplies them."""
    device = engine.device.type
    products = _PRODUCTS.get(device, ())
    if device in _CONVOLUTIONS and engine.passes.convolve:
        products += _CONVOLUTIONS[device]
    for backend, operation in products:
        # As `torch.backends.mkldnn.matmul.fp32_precision`, in a quarter of the time.
        precision = torch._C._get_fp32_precision_getter(backend, operation)
        if precision not in ("none", "ieee"):
            raise MisuseError(
                f"fp32_precision of {backend}.{operation}={precision!r}: must be 'ieee' around "
                "make_private and its steps, because products of rounded numbers are too imprecise "
                "for clipping; call torch.set_float32_matmul_precision('highest') for matrix "
                "products, or set torch.backends.fp32_precision = 'ieee' for all."
            )


def require_whole(plan: Plan, name: str, given: Any) -> None:
    """Reject a batch in parts if shapes are fixed."""
    if plan.padded_to is not None:
        raise MisuseError(
            f"{name}={type(given).__name__}: must be the whole batch if shapes are fixed, because "
            "the number of parts would reveal its size; pass the drawn batch to step(), and set "
            "physical_batch to limit how many records pass through the model at once."
        )


def require_untouched(model: nn.Module) -> None:
    """Reject a model that has kept something computed from records."""
    kept = itertools.chain(model.named_buffers(), model.named_parameters())
    left = [name for name, tensor in kept if is_marked(tensor)]
    if left:
        raise IsolationError(
            f"weights or buffers={left[:3]}: must not be written from records in a forward pass, "
            "but were in this step; do not publish this model, and remove the write."
        )


def require_movement(
    before: Mapping[str, Tensor], parameters: Mapping[str, Tensor], optimizer: Optimizer
) -> None:
    """Require that the first step moved all trained weights, since noise moves them all."""
    rates = {id(p): g.get("lr") for g in optimizer.param_groups for p in g["params"]}
    still = []
    for name, old in before.items():
        weight = parameters[name]
        if weight.grad is None or not torch.equal(old, weight.detach()):
            continue
        # A rate so small that rounding removes the update is the user's choice.
        rate = rates.get(id(weight))  # None: not in the optimizer, or it has no rates
        step = (math.inf if rate is None else float(rate)) * weight.grad.abs()
        if bool((step > torch.finfo(weight.dtype).eps * old.abs()).any()):
            still.append(name)
    if still:
        raise MisuseError(
            f"parameters={still[:3]}: must move in the first step, but did not; check that this "
            "optimizer trains them and that their learning rate is not 0."
        )
