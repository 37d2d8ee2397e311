"""Checks at set-up: the model, the optimizer, and the loss."""

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

from steppe.errors import ConfigurationError, UnsupportedModelError
from steppe.gradients import Kernels, objective_of
from steppe.plan import Plan
from steppe.records import Records, share_records
from steppe.utils import user_code, validation
from steppe.utils.batches import tensors_in

# Optimizers that cannot take private steps, and why.
_UNFIT: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "must not query the data more than once per step, as its line search does",
    torch.optim.SparseAdam: "accepts sparse gradients only, and noise makes gradients dense",
}

# The modules of torch with classes that distribute a model. By name, because importing them is
# slow.
_SPREADING = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed._composable")


def require_kinds(*, model: Any, plan: Any, kernels: Any) -> None:
    """Check the types of model, plan and kernels."""
    if not isinstance(model, nn.Module):
        rule, remedy = "must be a torch nn.Module", "wrap a function in a module with its weights"
        raise validation.fail("model", _kind(model), rule, remedy)
    if not isinstance(plan, Plan):
        remedy = "write steppe.Plan(epsilon=..., delta=..., batch_size=..., epochs=...)"
        raise validation.fail("plan", _kind(plan), "must be a steppe.Plan", remedy)
    if kernels is not None and not isinstance(kernels, Kernels):
        rule, remedy = "must be steppe.Kernels or None", "leave it out to choose by measurement"
        raise validation.fail("kernels", kernels, rule, remedy)


def require_one_process(model: nn.Module) -> None:
    """Reject a model that is distributed over devices, and a run in several processes.

    Every process would draw from all records and count only its own steps, so its ε would be too
    small for what all of them release.
    """
    for name, module in model.named_modules():
        if any(kind.__module__.startswith(_SPREADING) for kind in type(module).__mro__):
            raise validation.fail(
                f"module {name!r}" if name else "model",
                _kind(module),
                "must not be distributed over devices or processes, which the account does not "
                "cover",
                "pass the module that it wraps, and train in one process on one device",
            )
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and (processes := torch.distributed.get_world_size()) > 1:
        raise validation.fail(
            "torch.distributed",
            f"{processes} processes",
            "must be one, because each would sample all records and report its own ε",
            "train in one process, without torchrun or init_process_group",
        )


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The trainable weights by name. The optimizer must have exactly these."""
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
        p.grad = None  # frozen: the optimizer would use an old gradient, without noise
    return parameters


def require_plain_steps(optimizer: Optimizer) -> None:
    """Reject an optimizer whose step needs more than the gradient."""
    # Of the class, because schedulers replace the method by one with another signature.
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [a.name for a in arguments if a.default is a.empty and a.kind not in any_number]
    if needed:
        raise validation.fail(
            "optimizer",
            _kind(optimizer),
            f"must step without arguments, but needs {', '.join(needed)}; a closure would query "
            "the data again",
            "use SGD or Adam",
        )


def _require_real(parameters: dict[str, Tensor]) -> None:
    """Reject weights that cannot have a private gradient."""
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise validation.fail(
                f"weight {name!r}",
                "not made yet",
                "must exist, but a lazy layer creates its weights in the first pass",
                "run the model once on a synthetic batch, then create the optimizer",
            )
        if parameter.is_complex():
            raise validation.fail(
                f"weight {name!r}",
                str(parameter.dtype),
                "must be real, because half of its gradient would be lost",
                "use a real parameter, and torch.view_as_complex in the forward pass",
            )
        if parameter.is_inference():
            raise validation.fail(
                f"weight {name!r}",
                "made in inference_mode",
                "must be able to have a gradient",
                "build the model outside the block",
            )


def refuse_private_as_public(records: Records, public: Any) -> None:
    """Reject private records given as public ones, as far as `share_records` detects them."""
    if public is not None and share_records(records, public):
        raise validation.fail(
            "public",
            _kind(public),
            "are the private records, but a clip uses public records without noise",
            "give records that need no protection, or use a clip without public records",
        )


def refuse_drawn_as_public(drawn: Any, public: Any) -> None:
    """Reject a batch of private records, or a part of it, given as public records."""
    # Tensor by tensor, because a batch may be any mapping, also of another library.
    if share_records(list(tensors_in(drawn)), list(tensors_in(public))):
        raise validation.fail(
            "batch",
            "the private batch",
            "was drawn from the private records, and a public step has no clip and no noise",
            "pass it to step(), and public records to public_step()",
        )


def name_unmoved(unused: Sequence[str], detached: Sequence[str], begun: bool) -> None:
    """Name trained weights that get no gradient: a warning, or an error if the model has a start.

    Args:
        unused, detached: as for `warn_of_unused`.
        begun: whether the weights begin with a start, of which noise alone would destroy a part.
    """
    stuck = [*unused, *detached]
    if not begun or not stuck:
        warn_of_unused(unused, detached)
        return
    rule = "cannot move: no gradient comes to these weights, so noise alone would change the start"
    remedy = (
        "freeze them with requires_grad_(False) before you create the optimizer, or use them in "
        "the forward pass without detach() or no_grad()"
    )
    raise UnsupportedModelError.about("parameters", stuck[:3], rule, remedy)


def warn_of_unused(
    unused: Sequence[str], detached: Sequence[str] = (), level: int | None = None
) -> None:
    """Warn about trained weights that get no gradient: only noise will move them.

    Args:
        unused: weights that no record uses, by name.
        detached: weights that are used, but get no gradient.
        level: `stacklevel` of the warning; None finds the user's line.
    """
    level = user_code.level() if level is None else level
    found = (
        (unused, "be used by the model, but are not", "use them in the forward pass"),
        (
            detached,
            "get a gradient, but get none",
            "remove detach() or no_grad() from the forward pass",
        ),
    )
    for names, rule, remedy in found:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            warnings.warn(
                f"parameters={list(names[:3])}{more}: should {rule}, so only noise moves them; "
                "freeze them with requires_grad_(False) before you create the optimizer, or "
                f"{remedy}.",
                stacklevel=level,
            )


def warn_of_other_batches(data: Any, batch_size: float) -> None:
    """Warn if the batch size of a loader differs from the plan's, which is used.

    Args:
        data: as the user gave it.
        batch_size: of the plan.
    """
    if not isinstance(data, DataLoader):
        return
    own = getattr(data.batch_sampler, "batch_size", None)  # also set by batch_size=
    # 1 is the default of loaders, and loaders have whole numbers only.
    if own not in (None, 1, round(batch_size)):
        where = "batch_sampler.batch_size" if data.batch_size is None else "batch_size"
        warnings.warn(
            f"DataLoader.{where}={own}: is ignored; the plan's batch size, {batch_size:g}, is the "
            "expected number of records in a step; use the same, or leave it out of the loader.",
            stacklevel=user_code.level(),
        )


def losses_of(
    model: nn.Module,
    plan: Plan,
    loss: Callable[..., Tensor] | None,
    objective: Callable[[nn.Module, Any], Tensor] | None,
    augment: Any,
) -> Callable[[Any], Tensor]:
    """The function from a batch to one loss per record, from `loss` or `objective`."""
    validation.exactly_one("loss=F.cross_entropy is the usual one", loss=loss, objective=objective)
    for name, function in (("loss", loss), ("objective", objective)):
        if isinstance(function, type):
            raise validation.fail(
                name, function.__name__, "must be an instance", f"write {function.__name__}()"
            )
    if augment is not None and not callable(augment):
        rule = "must be a function that makes one random view of a batch of inputs"
        raise validation.fail("augment", augment, rule, "pass the function, not its result")
    if loss is not None:
        return objective_of(model, loss, plan.views, augment)
    for name, given, none in (("views", plan.views, 1), ("augment", augment, None)):
        if given != none:
            rule = "is for loss=, but objective= was given"
            raise validation.fail(name, given, rule, "average the views inside your objective")
    if not callable(objective):
        rule, remedy = "must be a function of (model, batch)", "return one loss for each record"
        raise validation.fail("objective", objective, rule, remedy)
    own = objective
    return lambda batch: own(model, batch)


def _kind(value: object) -> str:
    return type(value).__name__
