"""What a private loop is made from: the weights that are trained, and one loss for each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steppe import _validate
from steppe.clipping import objective_of
from steppe.errors import ConfigurationError
from steppe.plan import Plan

# Optimizers that cannot take private steps, and why.
_UNFIT: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "must not ask the data more than once a step, as its line search does",
    torch.optim.SparseAdam: "takes sparse gradients only, and noise leaves none",
}


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The trainable weights, which must be exactly those of the optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise _validate.fail(
            "optimizer", type(optimizer).__name__, "must be a torch.optim.Optimizer", "pass one"
        )
    for kind, rule in _UNFIT.items():
        if isinstance(optimizer, kind):
            raise _validate.fail("optimizer", kind.__name__, rule, "use SGD or Adam")
    parameters: dict[str, Tensor] = {
        name: p for name, p in model.named_parameters() if p.requires_grad
    }
    if not parameters:
        raise ConfigurationError(
            "model=no trainable weights: must have some; set requires_grad on what to train."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in parameters.items() if id(p) not in held]
    if missing:
        raise ConfigurationError(
            f"optimizer lacks {missing[:3]}: must hold every trainable weight; build it from "
            "model.parameters() after the last change to the model, or freeze these weights."
        )
    known = {id(p) for p in model.parameters()}
    strangers = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in known]
    if strangers:
        raise ConfigurationError(
            f"optimizer holds {len(strangers)} weights that are not the model's: must hold the "
            "model's own; build it after fix(model) or any copy of the model."
        )
    trained = {id(p) for p in parameters.values()}
    for p in (p for g in optimizer.param_groups for p in g["params"] if id(p) not in trained):
        p.grad = None  # frozen: an old gradient would move it without noise
    return parameters


def losses_of(
    model: nn.Module,
    plan: Plan,
    loss: Callable[..., Tensor] | None,
    objective: Callable[[nn.Module, Any], Tensor] | None,
    augment: Callable[[Tensor], Tensor] | None,
) -> Callable[[Any], Tensor]:
    """One loss for each record of a batch, from the `loss` or the `objective` that was given."""
    if (loss is None) == (objective is None):
        raise _validate.fail(
            "loss", loss, "give either loss or objective", "loss=F.cross_entropy is the usual one"
        )
    if loss is not None:
        return objective_of(model, loss, plan.views, augment)
    if augment is not None or plan.views > 1:
        raise _validate.fail(
            "augment", augment, "goes with loss", "average the views inside your objective"
        )
    own = objective
    return lambda batch: own(model, batch)  # type: ignore[misc]
