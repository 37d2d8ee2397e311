"""Before the first step: does every record stand alone, and are its gradients right?

A per-record bound means nothing if one record's output depends on another. The probe replaces one
made-up record at a time and looks at what moves: in the losses (isolation), in every operation that
uses a weight (where the records lie), in the buffers (nothing may be written in a forward pass). At
the end it compares the engine's gradients with autograd's own, record by record.
"""

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

from steppe.clipping.batches import each
from steppe.clipping.engine import ClippedSum, check_losses
from steppe.clipping.flat import Flat
from steppe.clipping.kernels import Kernels
from steppe.clipping.layout import Layout
from steppe.clipping.rules import RULES
from steppe.clipping.slots import wide, wide_dtype
from steppe.clipping.synthetic import STYLES, Style, synthetic, with_other_record
from steppe.clipping.tracing import Contact, Layouts, Output, Tracer, mark, tensors_in
from steppe.errors import IsolationError, UnsupportedModelError

RECORDS = 3
_ROUNDS = 2
_SEED = 20_170
# float32 gradients of the same graph by two routes; a wrong rule is wrong by far more.
_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Row:
    """One line of the layer table: an operation that uses weights, the path it takes and why."""

    operation: str
    path: str
    why: str
    weights: tuple[str, ...]
    numel: int


@dataclass(frozen=True)
class Report:
    """What the probe found.

    Attributes:
        layouts: where the records lie, one entry for each contact.
        rows: the layer table.
        unused: trained weights that no record uses; they get noise only.
        bytes_per_record: activations and output gradients that one record keeps alive.
    """

    layouts: list[Layouts]
    rows: list[Row]
    unused: tuple[str, ...]
    bytes_per_record: int

    def __str__(self) -> str:
        """The layer table, for reading."""
        head = ("weights", "operation", "path", "size", "why")
        lines = [
            (", ".join(row.weights), row.operation, row.path, f"{row.numel:,}", row.why)
            for row in self.rows
        ]
        lines += [(name, "none", "unused", "", "no record uses it") for name in self.unused]
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [head, *lines]]
        return "\n".join([*text, f"memory: {self.bytes_per_record / 2**20:.2f} MB a record"])


@dataclass
class _Sight:
    """Everything one run of the objective showed."""

    contacts: list[Contact] = field(default_factory=list)
    paths: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    outputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    modules: list[tuple[str, Tensor]] = field(default_factory=list)
    losses: Tensor = field(default_factory=lambda: torch.zeros(0))


def probe(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    example: Any,
) -> Report:
    """Check a model and its objective on made-up records.

    Args:
        model: where names, buffers and modes are read; the objective runs it.
        parameters: the weights to train, by name.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.

    Raises:
        IsolationError: one record's result depends on another, or a buffer changes.
        UnsupportedModelError: a weight is used where the engine cannot see it, or the engine's
            gradients differ from autograd's.

    Guarantees:
        Reads no value of `example` and leaves weights, buffers and random state as they were.
    """
    generator = torch.Generator().manual_seed(_SEED)
    with _unchanged(model), torch.random.fork_rng():
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        style, base_batch, base = _first_finite(model, parameters, objective, example, generator)
        _require_quiet_buffers(model, before)
        others = []
        for which in list(range(RECORDS)) * _ROUNDS:
            changed = with_other_record(base_batch, which, generator, style)
            others.append((which, _look(model, parameters, objective, changed)))
        _require_isolation(base, others)
        layouts = _layouts(base, others)
        _require_right_gradients(parameters, objective, base_batch, layouts)
    names = {id(p): name for name, p in parameters.items()}
    rows = [_row(c, path, names) for c, path in zip(base.contacts, base.paths, strict=True)]
    used = {name for row in rows for name in row.weights}
    held = sum(t.numel() * t.element_size() for ts in base.inputs + base.outputs for t in ts)
    unused = tuple(name for name in parameters if name not in used)
    return Report(layouts, rows, unused, max(1, held // RECORDS))


def inspect(model: nn.Module, *inputs: Tensor) -> Report:
    """Which path every layer takes, and why; print the result to read it as a table.

    Args:
        model: any module.
        inputs: a batch of any number of records as the model takes it; only shapes and types are
            used.

    Examples:
        >>> print(inspect(nn.Linear(3, 2), torch.zeros(1, 3)))  # doctest: +ELLIPSIS
        weights       operation  path    size  why
        weight, bias  linear     linear  8     ...
        memory: 0.00 MB a record
    """

    def squares(batch: Any) -> Tensor:
        outputs = [out for out in tensors_in(model(*batch)) if out.is_floating_point()]
        return torch.stack([out.square().flatten(1).sum(1) for out in outputs]).sum(0)

    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return probe(model, parameters, squares, inputs)


def _first_finite(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    example: Any,
    generator: torch.Generator,
) -> tuple[Style, Any, _Sight]:
    """Made-up records on which the losses are finite: NaN hides what depends on what."""
    for style in STYLES:
        batch = synthetic(example, RECORDS, generator, style)
        sight = _look(model, parameters, objective, batch)
        if bool(torch.isfinite(sight.losses).all()):
            return style, batch, sight
    raise UnsupportedModelError(
        "loss=not finite: must be a finite number on inputs from N(0, 1) or [0, 1) with labels 0 "
        "and 1; check the scale of the initial weights and the loss."
    )


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Put every buffer back afterwards."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])


def _look(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    batch: Any,
) -> _Sight:
    """Run the objective once and write down what passes."""
    sight = _Sight()

    def watch(contact: Contact, output: Output) -> None:
        sight.contacts.append(contact)
        sight.inputs.append(tuple(t.detach().clone() for t in contact.inputs))
        sight.outputs.append(tuple(t.detach().clone() for t in tensors_in(output)))

    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}

    inside: list[str] = []

    def before_module(module: nn.Module, args: Any) -> None:
        del args
        inside.append(f"{names.get(id(module), '')} ({type(module).__name__})")

    def after_module(module: nn.Module, args: Any, output: Any) -> None:
        del args
        inside.pop()
        if (name := names.get(id(module))) is not None:
            for tensor in tensors_in(output):
                sight.modules.append((f"{name} ({type(module).__name__})", tensor.detach().clone()))

    alias = each(lambda tensor: tensor.detach(), batch)
    mark(alias)
    torch.manual_seed(_SEED)
    tracer = Tracer(RECORDS, RULES, watch=watch)
    handles = (
        register_module_forward_pre_hook(before_module),
        register_module_forward_hook(after_module),
    )
    try:
        with torch.enable_grad():
            with tracer:
                losses = objective(alias)
            check_losses(losses, RECORDS)
            _require_visible(losses, parameters)
    except UnsupportedModelError as error:
        where = f"layer={inside[-1]!r}, " if inside else ""
        raise type(error)(f"{where}{error}") from error
    finally:
        for handle in handles:
            handle.remove()
    sight.losses = losses.detach().clone()
    sight.paths = [(use.path, use.why) for use in tracer.uses]
    return sight


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
            "loss in a way torch does not show (a custom autograd.Function, a compiled or "
            "checkpointed block); write that block with torch operations, or freeze them."
        )


def _require_quiet_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    changed = [
        name
        for name, buffer in model.named_buffers()
        if name not in before or not torch.equal(buffer.nan_to_num(), before[name].nan_to_num())
    ]
    if changed:
        raise IsolationError(
            f"buffers={changed[:3]}: must not change in a forward pass, because they carry one "
            "record's values to the next without noise; put these layers in eval mode, or replace "
            "batch normalisation with steppe.fix(model)."
        )


def _require_isolation(base: _Sight, others: list[tuple[int, _Sight]]) -> None:
    for which, sight in others:
        rest = [i for i in range(RECORDS) if i != which]
        if not torch.equal(sight.losses[rest], base.losses[rest]):
            raise IsolationError(
                f"layer={_first_mixing(base, others)}: must treat every record alone, and another "
                "record's output moved when one was replaced; use GroupNorm or LayerNorm in place "
                "of batch statistics (steppe.fix(model)), and no operation across the batch."
            )


def _first_mixing(base: _Sight, others: list[tuple[int, _Sight]]) -> str:
    """The first module whose output has no place for the records that fits what moved."""
    for position, (name, tensor) in enumerate(base.modules):
        moved = [(w, s.modules[position][1]) for w, s in others if position < len(s.modules)]
        if _find_layout(tensor, moved) is None:
            return repr(name)
    return "'the loss'"


def _layouts(base: _Sight, others: list[tuple[int, _Sight]]) -> list[Layouts]:
    """Where the records lie in every input and output of every contact."""
    result = []
    for position, contact in enumerate(base.contacts):
        sides = []
        for side in ("inputs", "outputs"):
            found = []
            for which, tensor in enumerate(getattr(base, side)[position]):
                moved = [(w, getattr(s, side)[position][which]) for w, s in others]
                layout = _find_layout(tensor, moved)
                if layout is None:
                    raise IsolationError(
                        f"operation={contact.name!r} on {tuple(tensor.shape)}: every row must "
                        "belong to one record, and some rows moved with two; keep the records "
                        "apart until the loss."
                    )
                found.append(layout)
            sides.append(tuple(found))
        result.append(Layouts(contact.name, sides[0], sides[1]))
    return result


def _find_layout(tensor: Tensor, moved: list[tuple[int, Tensor]]) -> Layout | None:
    """The first arrangement of records that explains all changes, or None."""
    for axis in range(tensor.ndim):
        for interleaved in (False, True):
            layout = Layout(axis, interleaved)
            if layout.fits(tuple(tensor.shape), RECORDS) and all(
                _explains(layout, tensor, other, which) for which, other in moved
            ):
                return layout
    return None


def _explains(layout: Layout, before: Tensor, after: Tensor, which: int) -> bool:
    """Whether only rows of record `which` changed."""
    if before.shape != after.shape:
        return False
    changed = layout.split((before != after) & ~(before.isnan() & after.isnan()), RECORDS)
    return not any(bool(changed[i].any()) for i in range(RECORDS) if i != which)


def _require_right_gradients(
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    batch: Any,
    layouts: list[Layouts],
) -> None:
    """The engine's per-record gradients against autograd's, on one shared set of random numbers."""
    factors = torch.tensor([1.0, -0.5, 2.0])
    try:
        norms, total = _by_autograd(parameters, objective, batch, factors)
        found_norms, found_total = _by_engine(parameters, objective, batch, layouts, factors)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UnsupportedModelError(
            f"gradients=none: must be computable record by record, and torch says: {reason}; take "
            "checkpointed or compiled blocks out of the model, or rewrite that layer."
        ) from error
    # A gradient that is zero on paper is rounding noise: measure it by the record's whole one.
    floor = 1e-3 * norms.square().sum(0).sqrt() + 1e-8
    for i, (name, parameter) in enumerate(parameters.items()):
        allowed = _TOLERANCE * _slack(parameter.dtype)
        scale = torch.maximum(norms[i], floor)
        worst = max(
            float(((found_norms[i] - norms[i]).abs() / scale).max()),
            float((found_total[i] - total[i]).norm() / scale.max()),
        )
        if not worst <= allowed:
            raise UnsupportedModelError(
                f"parameter={name!r}: its per-record gradient must equal autograd's, and is off by "
                f"{worst:.1e}; report the layer, and freeze it or write it with torch.nn layers "
                "meanwhile."
            )


def _by_autograd(
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    batch: Any,
    factors: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """Norms (weight, record) and Σᵢ factorᵢ gᵢ, from one graph and one backward pass a record."""
    leaves = list(parameters.values())
    norms = torch.zeros(len(leaves), RECORDS)
    total = [torch.zeros_like(leaf, dtype=wide_dtype(leaf)) for leaf in leaves]
    alias = each(lambda tensor: tensor.detach(), batch)
    mark(alias)
    torch.manual_seed(_SEED)
    with torch.enable_grad(), Tracer(RECORDS, RULES, capture=False):
        losses = objective(alias)
    for record in range(RECORDS):
        grads = torch.autograd.grad(losses[record], leaves, allow_unused=True, retain_graph=True)
        for i, grad in enumerate(grads):
            if grad is not None:
                norms[i, record] = wide(grad).norm()
                total[i].add_(wide(grad), alpha=float(factors[record]))
    return norms, total


def _by_engine(
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    batch: Any,
    layouts: list[Layouts],
    factors: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """The same by the engine's own way: norms and weighted sums of its slots."""
    torch.manual_seed(_SEED)
    engine = ClippedSum(
        parameters, objective, Flat(), layouts=layouts, kernels=Kernels(measure=False)
    )
    norms = torch.zeros(len(parameters), RECORDS)
    total = [torch.zeros_like(leaf, dtype=wide_dtype(leaf)) for leaf in parameters.values()]
    place = {id(leaf): i for i, leaf in enumerate(parameters.values())}
    nobody = torch.zeros(0, dtype=torch.long)
    with torch.no_grad():
        for leaf, slot in engine.slots(batch):
            i = place[id(leaf)]
            norms[i] = slot.squared_norms().sqrt()
            slot.add_(total[i].view(-1), factors.to(total[i].dtype), nobody)
    return norms, total


def _slack(dtype: torch.dtype) -> float:
    return max(1.0, torch.finfo(dtype).eps / torch.finfo(torch.float32).eps / 500)


def _row(contact: Contact, path: tuple[str, str], names: dict[int, str]) -> Row:
    leaves = {id(leaf): leaf for tensor in contact.shared for leaf in _leaves(tensor)}
    weights = tuple(names[key] for key in leaves if key in names)
    name, why = path
    if any(not tensor.is_leaf for tensor in contact.shared):
        why += ", then back to the weights it was computed from"
    numel = sum(leaf.numel() for leaf in leaves.values())
    return Row(contact.name, name, why, weights, numel)


def _leaves(tensor: Tensor) -> list[Tensor]:
    """The weights that a tensor was computed from."""
    if tensor.grad_fn is None:
        return [tensor]
    found, todo, seen = [], [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [parent for parent, _ in node.next_functions if parent is not None]
    return found
