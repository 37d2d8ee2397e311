"""Checks at set-up: the model, the optimizer, and one loss for each record."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from steppe.errors import ConfigurationError
from steppe.gradients import Kernels, objective_of
from steppe.plan import Plan
from steppe.records import Records, share_records
from steppe.utils import user_code, validation

# Optimizers that cannot take private steps, and why.
_UNFIT: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "must not ask the data more than once a step, as its line search does",
    torch.optim.SparseAdam: "takes sparse gradients only, and noise leaves none",
}

# Where torch keeps the classes that spread a module over devices. By name, since to import them
# takes longer than to look.
_SPREADING = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed._composable")


def require_kinds(*, model: Any, plan: Any, kernels: Any) -> None:
    """Refuse what is no model, no plan or no choice of kernels, before anything is done with it."""
    if not isinstance(model, nn.Module):
        rule, remedy = "must be a torch nn.Module", "wrap a function in a module with its weights"
        raise validation.fail("model", _kind(model), rule, remedy)
    if not isinstance(plan, Plan):
        remedy = "write steppe.Plan(epsilon=..., delta=..., batch_size=..., epochs=...)"
        raise validation.fail("plan", _kind(plan), "must be a steppe.Plan", remedy)
    if kernels is not None and not isinstance(kernels, Kernels):
        rule, remedy = "must be steppe.Kernels or None", "leave it out to have the fastest measured"
        raise validation.fail("kernels", kernels, rule, remedy)


def require_one_process(model: nn.Module) -> None:
    """Refuse a model that is spread over devices, and a run in several processes.

    Every process would draw from all records and count its own steps only, so that its ε would be
    too small for what all of them release.
    """
    for name, module in model.named_modules():
        if any(kind.__module__.startswith(_SPREADING) for kind in type(module).__mro__):
            raise validation.fail(
                f"module {name!r}" if name else "model",
                _kind(module),
                "must not be spread over devices or processes, which the account knows nothing of",
                "give the module that it wraps, and train in one process on one device",
            )
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and (processes := torch.distributed.get_world_size()) > 1:
        raise validation.fail(
            "torch.distributed",
            f"{processes} processes",
            "must be one, since each would sample all records and report an ε of its own",
            "train in one process, without torchrun or init_process_group",
        )


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The trainable weights, which must be exactly those of the optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise validation.fail(
            "optimizer", _kind(optimizer), "must be a torch.optim.Optimizer", "pass one"
        )
    for kind, rule in _UNFIT.items():
        if isinstance(optimizer, kind):
            raise validation.fail("optimizer", kind.__name__, rule, "use SGD or Adam")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        rule = "must be False: torch refuses to update the weights, after the step was charged"
        raise validation.fail("optimizer.differentiable", True, rule, "leave it out")
    parameters: dict[str, Tensor] = {
        name: p for name, p in model.named_parameters() if p.requires_grad
    }
    if not parameters:
        remedy = "set requires_grad on what to train"
        raise validation.missing("model", remedy, "has no trainable weights")
    _require_real(parameters)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in parameters.items() if id(p) not in held]
    if missing:
        raise ConfigurationError(
            f"optimizer lacks {missing[:3]}: must hold every trainable weight; build it from "
            "model.parameters() after the last change to the model, or freeze these weights."
        )
    known = {id(p) for p in model.parameters()}
    foreign = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in known]
    if foreign:
        raise ConfigurationError(
            f"optimizer holds {len(foreign)} weights that are not the model's: must hold the "
            "model's own; build it after fix(model) or any copy of the model."
        )
    trained = {id(p) for p in parameters.values()}
    for p in (p for g in optimizer.param_groups for p in g["params"] if id(p) not in trained):
        p.grad = None  # frozen: an old gradient would move it without noise
    return parameters


def require_plain_steps(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose step is not taken along a gradient alone."""
    # Of the class: schedulers put a function of another signature in the place of the method.
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [a.name for a in arguments if a.default is a.empty and a.kind not in any_number]
    if needed:
        raise validation.fail(
            "optimizer",
            _kind(optimizer),
            f"must step without arguments, and needs {', '.join(needed)}; a closure would ask the "
            "data again",
            "use SGD or Adam",
        )


def _require_real(parameters: dict[str, Tensor]) -> None:
    """Refuse weights that no private gradient can be made for."""
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise validation.fail(
                f"weight {name!r}",
                "not made yet",
                "must be there, and a lazy layer makes its own in the first pass",
                "run the model once on a made-up batch, then make the optimizer",
            )
        if parameter.is_complex():
            raise validation.fail(
                f"weight {name!r}",
                str(parameter.dtype),
                "must be real, or half of its gradient is lost",
                "hold a real parameter and use torch.view_as_complex in the forward pass",
            )
        if parameter.is_inference():
            raise validation.fail(
                f"weight {name!r}",
                "made in inference_mode",
                "must be able to have a gradient",
                "build the model outside the block",
            )


def refuse_private_as_public(records: Records, public: Any) -> None:
    """Refuse private records in the place of public ones, as far as `share_records` can tell."""
    if public is not None and share_records(records, public):
        raise validation.fail(
            "public",
            _kind(public),
            "are the private records, and what a clip learns from public ones gets no noise",
            "give records that need no protection, or use a clip that needs none",
        )


def warn_of_unused(
    unused: Sequence[str], detached: Sequence[str] = (), level: int | None = None
) -> None:
    """Say which trained weights no record moves: a run is possible, and noise will move them.

    Args:
        unused: weights that no record uses, by name.
        detached: weights that records use and that no gradient comes back to.
        level: how many calls up the user's own line is, where not all between are the library's.
    """
    level = user_code.level() if level is None else level
    found = (
        (unused, "be used by the model, and no record uses them", "use them in the forward pass"),
        (
            detached,
            "reach the loss, and no gradient comes back to them",
            "take detach() or no_grad() out of the forward pass",
        ),
    )
    for names, rule, remedy in found:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            warnings.warn(
                f"parameters={list(names[:3])}{more}: should {rule}, so that noise alone moves "
                f"them; freeze them with requires_grad_(False) before the optimizer is made, or "
                f"{remedy}.",
                stacklevel=level,
            )


def warn_of_other_batches(data: Any, batch_size: float) -> None:
    """Say that the batch size of a loader is not the one that counts, where they differ.

    Args:
        data: what the records came in.
        batch_size: that of the plan.
    """
    if not isinstance(data, DataLoader):
        return
    own = getattr(data.batch_sampler, "batch_size", None)  # also of a batch_size that was given
    # 1 is what a loader has if nobody says anything, and no loader has a fraction.
    if own not in (None, 1, round(batch_size)):
        where = "batch_sampler.batch_size" if data.batch_size is None else "batch_size"
        warnings.warn(
            f"DataLoader.{where}={own}: should be that of the plan, {batch_size:g}, which alone "
            "says how many records a step takes on average; make it the same, or leave it out of "
            "the loader.",
            stacklevel=user_code.level(),
        )


def losses_of(
    model: nn.Module,
    plan: Plan,
    loss: Callable[..., Tensor] | None,
    objective: Callable[[nn.Module, Any], Tensor] | None,
    augment: Callable[[Tensor], Tensor] | None,
) -> Callable[[Any], Tensor]:
    """One loss for each record of a batch, from the `loss` or the `objective` that was given."""
    validation.exactly_one("loss=F.cross_entropy is the usual one", loss=loss, objective=objective)
    for name, function in (("loss", loss), ("objective", objective)):
        if isinstance(function, type):
            raise validation.fail(
                name, function.__name__, "must be made first", f"write {function.__name__}()"
            )
    _require_function(augment)
    if loss is not None:
        return objective_of(model, loss, plan.views, augment)
    for name, given, none in (("views", plan.views, 1), ("augment", augment, None)):
        if given != none:
            rule = "goes with a loss, and an objective was given"
            raise validation.fail(name, given, rule, "average the views inside your objective")
    if not callable(objective):
        rule, remedy = "must be a function of (model, batch)", "return one loss for each record"
        raise validation.fail("objective", objective, rule, remedy)
    own = objective
    return lambda batch: own(model, batch)


def _require_function(augment: Any) -> None:
    if augment is not None and not callable(augment):
        rule = "must be a function that makes one random view of a batch of inputs"
        raise validation.fail("augment", augment, rule, "give it, not what it makes")


def _kind(value: object) -> str:
    return type(value).__name__
