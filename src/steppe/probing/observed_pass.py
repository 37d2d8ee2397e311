"""One forward pass, with the inputs and outputs of its contacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from steppe.errors import UnsupportedModelError
from steppe.gradients import (
    RULES,
    Contact,
    Output,
    Tracer,
    check_losses,
    is_marked,
    mark,
    unchanged,
    value_free,
)
from steppe.randomness import seed_global_generators
from steppe.utils.batches import count, each, tensors_in

Objective = Callable[[Any], Tensor]
BEFORE = ", before "


@dataclass(frozen=True)
class ProbedModel:
    """The model, weights and objective that are probed."""

    model: nn.Module
    parameters: Mapping[str, Tensor]
    objective: Objective

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(iter(self.parameters.values())).device


@dataclass
class ObservedPass:
    """The observations of one run of the objective.

    Attributes:
        contacts, paths, inputs, outputs: for each contact, in order.
        modules: if requested, the name and output of every module, in order; before each, its
            input, under the name of the enclosing module.
        buffers: the values of the model's buffers afterwards.
        losses: one for each record.
    """

    contacts: list[Contact] = field(default_factory=list)
    paths: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    outputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    modules: list[tuple[str, Tensor]] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    losses: Tensor = field(default_factory=lambda: torch.zeros(0, device="cpu"))


def observe(probed: ProbedModel, batch: Any, seed: int, modules: bool = False) -> ObservedPass:
    """Run the objective once, from the model's current state, and restore that state.

    Args:
        probed: the model and objective.
        batch: the input.
        seed: for the random numbers.
        modules: whether to store inputs and outputs of every module too.
    """
    observed = ObservedPass()
    model = probed.model
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    inside: list[str] = []

    def watch(contact: Contact, output: Output) -> None:
        if torch.is_autocast_enabled(probed.device.type):
            raise UnsupportedModelError(
                "autocast=on in the forward pass: must be off, since its products are too coarse "
                "to clip by; take it out, and for speed use model.to(torch.bfloat16)."
            )
        observed.contacts.append(contact)
        observed.inputs.append(tuple(t.detach().clone() for t in contact.inputs))
        observed.outputs.append(tuple(t.detach().clone() for t in tensors_in(output)))

    def before_module(module: nn.Module, args: Any) -> None:
        name = f"{names.get(id(module), '')} ({type(module).__name__})"
        if modules and inside:  # the input, as the enclosing module computed it
            keep(f"{inside[-1]}{BEFORE}{name}", args)
        inside.append(name)

    def after_module(module: nn.Module, args: Any, output: Any) -> None:
        del args
        name = inside.pop()
        if modules and id(module) in names:
            keep(name, output)

    def keep(name: str, value: Any) -> None:
        observed.modules += [(name, tensor.detach().clone()) for tensor in tensors_in(value)]

    records = count(batch)
    alias = each(torch.clone, batch)  # the model may change its input in place
    tracer = Tracer(records, RULES, watch=watch)
    mark(alias, tracer.number)
    handles = (
        register_module_forward_pre_hook(before_module),
        register_module_forward_hook(after_module),
    )
    try:
        with unchanged(model):
            seed_global_generators(seed)
            with torch.enable_grad():
                with tracer, value_free():
                    losses = probed.objective(alias)
                check_losses(losses, records)
                _require_visible(losses, probed.parameters)
            observed.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    except UnsupportedModelError as error:
        where = f"layer={inside[-1]!r}, " if inside else ""
        raise type(error)(f"{where}{error}") from error
    finally:
        for handle in handles:
            handle.remove()
    observed.losses = losses.detach().clone()
    observed.paths = [(use.path, use.why) for use in tracer.uses]
    return observed


def kept_attributes(model: nn.Module) -> list[str]:
    """Plain attributes of modules that contain tensors made from records."""
    return [
        f"{name}.{key}".removeprefix(".")
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ("_parameters", "_buffers", "_modules")
        and any(is_marked(tensor) for tensor in tensors_in(value))
    ]


def _require_visible(losses: Tensor, parameters: Mapping[str, Tensor]) -> None:
    """Reject weights that affect the loss in a way that the tracer did not see."""
    if not losses.requires_grad:
        return
    reached = torch.autograd.grad(
        losses.sum(), list(parameters.values()), allow_unused=True, retain_graph=True
    )
    hidden = [name for name, grad in zip(parameters, reached, strict=True) if grad is not None]
    if hidden:
        raise UnsupportedModelError(
            f"parameters={hidden[:3]}: must be used by ordinary torch operations, and reach the "
            "loss in a way torch does not show (inside a custom autograd.Function or a "
            "checkpointed block); write that block with torch operations, or freeze them."
        )
