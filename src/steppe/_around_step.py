"""What must hold before and after a private step of a user's own loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.clipping.tracing import is_marked
from steppe.errors import IsolationError, MisuseError


def refuse_modes(engine: ClippedSum) -> None:
    """Modes of torch in which a step would fail half way, or tell of a record by failing."""
    if engine.in_mixed_precision:  # layers would work in types the probe has not seen
        raise MisuseError(
            "autocast=on: must be off around a private step; leave the block, and for speed in "
            "half precision use model.to(torch.bfloat16), whose gradients are clipped in float32."
        )
    if torch.is_inference_mode_enabled():
        raise MisuseError(
            "inference_mode=on: must be off around a private step, which needs gradients; leave "
            "the block."
        )
    if torch.is_anomaly_enabled():
        raise MisuseError(
            "detect_anomaly=on: must be off around a private step, because its error would tell "
            "that a record's gradient is not finite; look for anomalies on made-up data."
        )


def require_untouched(model: nn.Module) -> None:
    """Nothing made from records may be left in the model; the probe saw to it beforehand."""
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
    """Noise moves every weight, so one that stood still is not being trained."""
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    still = []
    for name, old in before.items():
        weight = parameters[name]
        if weight.grad is None or not torch.equal(old, weight.detach()):
            continue
        # A rate so small that the update is lost in rounding is the user's choice.
        step = float(rates.get(id(weight), math.inf)) * weight.grad.abs()
        if bool((step > torch.finfo(weight.dtype).eps * old.abs()).any()):
            still.append(name)
    if still:
        raise MisuseError(
            f"parameters={still[:3]}: must move in the first step, and did not; check that this "
            "optimizer trains them and that its learning rate reaches them."
        )
