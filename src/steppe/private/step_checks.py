"""What must hold before and after a private step of a user's own loop."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Modes of torch in which a step would fail half way, or tell of a record by failing."""
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
    """Settings of torch with which float32 is rounded on its way into a product."""
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


@dataclass(frozen=True)
class _Left:
    """How the private step left a weight.

    Attributes:
        version: torch's count of the weight's changes in place.
        gradient: the private gradient, which may go when the user clears it.
        counter: an empty tensor that shares the gradient's count of changes and not its memory.
        changes: that count.
    """

    version: int
    gradient: weakref.ref[Tensor] | None = None
    counter: Tensor | None = None
    changes: int = 0

    def is_gradient(self, found: Tensor) -> bool:
        """Whether this is the private gradient itself."""
        return self.gradient is not None and self.gradient() is found

    @property
    def gradient_changed(self) -> bool:
        """Whether something was added to the private gradient, or it was scaled or zeroed."""
        return self.counter is not None and self.counter._version != self.changes


class ForeignSteps:
    """Notices the lines of a plain loop, `loss.backward()` and `optimizer.step()`, left in a
    private one.

    Nothing is hooked for it. torch itself counts how often a tensor is changed in place, so after
    the fact two things can be seen: a gradient that is not the one the private step left, and a
    private gradient that was changed together with its weight, as a backward pass that adds to it
    and a step do. Weights alone may change: by averages, loading, bounds, public rules.

    Args:
        parameters: the trained weights, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.note()  # what pre-training left behind is nobody's mistake

    def note(self) -> None:
        """Remember weights and gradients as they are now."""
        counters: dict[int, Tensor] = {}  # pieces of one vector share its count
        self._left = {name: _left(weight, counters) for name, weight in self._parameters.items()}

    def require_alone(self) -> None:
        """Refuse to go on where something else than the private step was at work."""
        for name, weight in self._parameters.items():
            if not weight.requires_grad:
                continue
            left, found = self._left[name], weight.grad
            if found is not None and not left.is_gradient(found):
                raise MisuseError(
                    f"gradient of {name!r}=not from a private step: private steps must be the only "
                    "ones, a step along this gradient has no noise; take your own backward() and "
                    "optimizer.step() out of the loop and begin again from fresh weights. After a "
                    "backward pass on public records call optimizer.zero_grad()."
                )
            moved = weight._version != left.version and left.gradient_changed
            # Zeroed, as by zero_grad(set_to_none=False): nothing is left of what was added, if it
            # was, and bounds or averages may well have changed the weight.
            if moved and (found is None or bool(found.any())):
                raise MisuseError(
                    f"weight {name!r}=moved: private steps must be the only ones, and since the "
                    "last one this weight and its gradient were both changed; do not publish this "
                    "model, take your own backward() and optimizer.step() out of the loop and "
                    "begin again from fresh weights."
                )


def _left(weight: Tensor, counters: dict[int, Tensor]) -> _Left:
    gradient = weight.grad
    if gradient is None or gradient.is_inference() or gradient.layout != torch.strided:
        return _Left(weight._version)  # the latter two have no count to share, and are not ours
    owner = id(gradient._base if gradient._is_view() else gradient)
    counter = counters.get(owner)
    if counter is None:
        counter = counters[owner] = gradient.detach()
        counter.data = gradient.new_empty(0)  # lets go of the memory
    return _Left(weight._version, weakref.ref(gradient), counter, counter._version)
