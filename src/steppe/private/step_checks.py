"""What must hold before and after a private step of a user's own loop."""

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

# Where float32 products are made, by device: torch's names of backends and operations.
_PRODUCTS = {
    "cpu": (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
    "cuda": (("cuda", "matmul"),),
}
# The same where weights meet records in convolutions. Elsewhere the setting has no effect, and on
# CUDA it is coarse until somebody says otherwise. Recurrent layers are products of matrices here.
_CONVOLUTIONS = {"cuda": (("cuda", "conv"),)}


def refuse_modes(engine: ClippedSum) -> None:
    """Refuse modes of torch in which a step would fail half way, or reveal a record by failing."""
    if engine.in_mixed_precision:  # layers would work in types the probe has not seen
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
            "would tell that a record's gradient is not finite; look for anomalies on made-up data."
        )


def refuse_coarse_products(engine: ClippedSum) -> None:
    """Refuse settings of torch with which torch rounds float32 numbers before it multiplies."""
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
                "make_private and its steps, since products of rounded numbers are too coarse to "
                "clip by; call torch.set_float32_matmul_precision('highest') for products of "
                "matrices, or set torch.backends.fp32_precision = 'ieee' for all."
            )


def require_whole(plan: Plan, name: str, given: Any) -> None:
    """Refuse a batch in parts where shapes are fixed, whatever its size."""
    if plan.padded_to is not None:
        raise MisuseError(
            f"{name}={type(given).__name__}: must be the whole batch where shapes are fixed, since "
            "the number of parts would tell its size; pass what was drawn to step(), and set "
            "physical_batch for what goes through the model at once."
        )


def require_untouched(model: nn.Module) -> None:
    """Refuse a model in which something made from records is left, as the probe did beforehand."""
    kept = itertools.chain(model.named_buffers(), model.named_parameters())
    left = [name for name, tensor in kept if is_marked(tensor)]
    if left:
        raise IsolationError(
            f"weights or buffers={left[:3]}: must not be written from records in a forward pass, "
            "and were in this step; do not publish this model, and take the write out."
        )


def require_movement(
    before: Mapping[str, Tensor], parameters: Mapping[str, Tensor], optimizer: Optimizer
) -> None:
    """Refuse weights that the first step did not move: noise moves all that are trained."""
    rates = {id(p): g.get("lr") for g in optimizer.param_groups for p in g["params"]}
    still = []
    for name, old in before.items():
        weight = parameters[name]
        if weight.grad is None or not torch.equal(old, weight.detach()):
            continue
        # A rate so small that the update is lost in rounding is the user's choice.
        rate = rates.get(id(weight))  # None: no such weight, or an optimizer that has no rates
        step = (math.inf if rate is None else float(rate)) * weight.grad.abs()
        if bool((step > torch.finfo(weight.dtype).eps * old.abs()).any()):
            still.append(name)
    if still:
        raise MisuseError(
            f"parameters={still[:3]}: must move in the first step, and did not; check that this "
            "optimizer trains them and that its learning rate reaches them."
        )
