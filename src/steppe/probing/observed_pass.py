"""One run of the objective, with everything written down that passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients import (
    RULES,
    Contact,
    Output,
    Tracer,
    check_losses,
    is_marked,
    mark,
    unmark,
    value_free,
)
from steppe.randomness import seed_global_generators
from steppe.utils.batches import count, each, tensors_in, version

Objective = Callable[[Any], Tensor]
BEFORE = ", before "


@dataclass(frozen=True)
class ProbedModel:
    """What is probed."""

    model: nn.Module
    parameters: Mapping[str, Tensor]
    objective: Objective

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.parameters.values())).device


@dataclass
class ObservedPass:
    """Everything one run of the objective showed.

    Attributes:
        contacts, paths, inputs, outputs: for each contact, in order.
        modules: name and output of every module, in order, where asked for; and before that,
            what it was given, under the name of the module around it.
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


def observe(subject: ProbedModel, batch: Any, seed: int, modules: bool = False) -> ObservedPass:
    """Run the objective once, from the model's present state, and put that state back.

    Args:
        subject: what to run.
        batch: on what.
        seed: for the random numbers.
        modules: whether to keep inputs and outputs of every module too.
    """
    sight = ObservedPass()
    model = subject.model
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    inside: list[str] = []

    def watch(contact: Contact, output: Output) -> None:
        if torch.is_autocast_enabled(subject.device.type):
            raise UnsupportedModelError(
                "autocast=on in the forward pass: must be off, since its products are too coarse "
                "to clip by; take it out, and for speed use model.to(torch.bfloat16)."
            )
        sight.contacts.append(contact)
        sight.inputs.append(tuple(t.detach().clone() for t in contact.inputs))
        sight.outputs.append(tuple(t.detach().clone() for t in tensors_in(output)))

    def before_module(module: nn.Module, args: Any) -> None:
        name = f"{names.get(id(module), '')} ({type(module).__name__})"
        if modules and inside:  # what the module around it made of its own input on the way
            keep(f"{inside[-1]}{BEFORE}{name}", args)
        inside.append(name)

    def after_module(module: nn.Module, args: Any, output: Any) -> None:
        del args
        name = inside.pop()
        if modules and id(module) in names:
            keep(name, output)

    def keep(name: str, value: Any) -> None:
        sight.modules += [(name, tensor.detach().clone()) for tensor in tensors_in(value)]

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
                    losses = subject.objective(alias)
                check_losses(losses, records)
                _require_visible(losses, subject.parameters)
            sight.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    except UnsupportedModelError as error:
        where = f"layer={inside[-1]!r}, " if inside else ""
        raise type(error)(f"{where}{error}") from error
    finally:
        for handle in handles:
            handle.remove()
    sight.losses = losses.detach().clone()
    sight.paths = [(use.path, use.why) for use in tracer.uses]
    return sight


def losses_of(subject: ProbedModel, batch: Any, seed: int) -> Tensor:
    """The losses alone, which takes a fraction of a look; `unchanged` is up to the caller."""
    seed_global_generators(seed)
    with torch.enable_grad():
        return subject.objective(each(torch.clone, batch)).detach().float()


def require_steady(subject: ProbedModel, batch: Any, seed: int) -> None:
    """A second pass must leave the buffers as the first did.

    How many passes a step takes depends on how many records were drawn, and buffers are published
    without noise: one that counts passes, or moves with each, tells that number.
    """
    model = subject.model
    seed_global_generators(seed)
    with unchanged(model), torch.enable_grad():
        subject.objective(each(torch.clone, batch))
        first = {n: (b, version(b), b.clone()) for n, b in model.named_buffers()}
        subject.objective(each(torch.clone, batch))
        moved = [n for n, b in model.named_buffers() if n not in first or _moved(b, *first[n])]
    if moved:
        raise IsolationError(
            f"buffers={moved[:3]}: must not change with every forward pass, because the number of "
            "passes depends on how many records were drawn; put these layers in eval mode, or "
            "write the buffer outside of the forward pass."
        )


def kept_attributes(model: nn.Module) -> list[str]:
    """Plain attributes of modules that hold something made from records."""
    return [
        f"{name}.{key}".removeprefix(".")
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ("_parameters", "_buffers", "_modules")
        and any(is_marked(tensor) for tensor in tensors_in(value))
    ]


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Refuse writes to weights, and to buffers from records; put every value back."""
    weights = {name: (p, version(p), p.detach().clone()) for name, p in model.named_parameters()}
    buffers = {name: (b, b.clone()) for name, b in model.named_buffers()}
    try:
        yield
    finally:
        written = [*_put_weights_back(model, weights), *_put_buffers_back(model, buffers)]
    if written:
        raise IsolationError(
            f"weights or buffers={written[:3]}: must not be written in a forward pass, because "
            "they would carry records' values out without noise; take the write out (max_norm, "
            "running statistics), put the layer in eval mode, or use steppe.fix(model)."
        )


def _changed(tensor: Tensor, before: int, value: Tensor) -> bool:
    """Whether a tensor was written; `.data` hides writes from the version."""
    return version(tensor) != before or not same(tensor.detach(), value)


def _moved(now: Tensor, then: Tensor, before: int, value: Tensor) -> bool:
    """Whether a pass changed a buffer. A write that leaves the value as it is counts too: it may
    move it once the weights have moved."""
    return not same(now, value) or _changed(then, before, value)


def differs(before: Tensor, after: Tensor) -> Tensor:
    """Where two tensors of one shape differ; NaN equals itself."""
    return (before != after) & ~(before.isnan() & after.isnan())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape and nowhere differ."""
    if a.shape != b.shape:
        return False
    # The first question is answered in one pass over weights that nobody wrote.
    return (a.dtype == b.dtype and torch.equal(a, b)) or not bool(differs(a, b).any())


@torch.no_grad()
def _put_weights_back(
    model: nn.Module, weights: Mapping[str, tuple[nn.Parameter, int, Tensor]]
) -> list[str]:
    """The names of those that were written, in place or by another tensor."""
    now = dict(model.named_parameters())
    written = [name for name in now if name not in weights]
    for name, (parameter, before, value) in weights.items():
        unmark(parameter)
        changed = _changed(parameter, before, value)
        if changed:
            if parameter.shape != value.shape:
                parameter.data = value
            parameter.copy_(value)
        if changed or now.get(name) is not parameter:
            path, _, last = name.rpartition(".")
            model.get_submodule(path)._parameters[last] = parameter
            written.append(name)
    return written


@torch.no_grad()
def _put_buffers_back(model: nn.Module, buffers: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """The names of those that were written from records."""
    written = [name for name, buffer in model.named_buffers() if is_marked(buffer)]
    for name, _ in list(model.named_buffers()):
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        if name in buffers:
            original, value = buffers[name]
            unmark(original)
            owner._buffers[last] = original.copy_(value)
        else:  # made in this forward pass
            del owner._buffers[last]
    return written


def _require_visible(losses: Tensor, parameters: Mapping[str, Tensor]) -> None:
    """No weight may reach the loss by a way that the tracer did not see."""
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
