"""The truth of a case: what autograd gives, with nothing of Steppe's engine.

Everything is measured in float64, so that rounding and mixing are far apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from isolation_case import (
    Case,
    Objective,
    batch_of,
    difference,
    like,
    records_of,
    same,
    with_value,
)
from torch import Tensor, nn

from steppe.randomness.global_generators import seed_global_generators
from steppe.utils.batches import count, each, tensors_in

ROUNDING = 1e-6  # what float64 leaves, relative to the size of what is compared


@dataclass(frozen=True)
class Measured:
    """What one pass over a batch gives.

    Attributes:
        losses: one for each record.
        together: the gradient of their sum by the weights, in one backward pass.
        signals: the gradient of their sum by every number of the batch, record by record.
        alone: the gradient of each loss alone by the weights, in the same pass.
    """

    losses: Tensor
    together: Tensor
    signals: Tensor
    alone: Tensor


def in_double(case: Case) -> tuple[nn.Module, Objective, Any]:
    """What `make` gives, in float64."""
    model, objective, batch = case.make()
    return model.double(), objective, doubled(batch)


def doubled(batch: Any) -> Any:
    """A batch with its numbers in float64."""
    return each(lambda own: own.double() if own.is_floating_point() else own, batch)


@contextmanager
def double_by_default() -> Iterator[None]:
    """Whatever user code makes in a pass is float64 too."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def measured(case: Case, model: nn.Module, objective: Objective, batch: Any) -> Measured:
    """Run a case on a batch, by autograd."""
    with double_by_default():
        return _measured(case, model, objective, doubled(batch))


def _measured(case: Case, model: nn.Module, objective: Objective, batch: Any) -> Measured:
    seed_global_generators(case.seed)
    given: list[Tensor] = []

    def watched(own: Tensor) -> Tensor:
        if not own.is_floating_point():
            return own.clone()
        given.append(own.detach().clone().requires_grad_())
        return given[-1].clone()  # which may be written in place

    if case.collate is not None:
        batch = case.collate(batch)
        case = Case(case.name, case.kind, case.build)
    losses = case.losses(model, objective, each(watched, batch))
    assert losses.shape == (count(batch),)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def gradient(of: Tensor, by: list[Tensor]) -> list[Tensor]:
        for tensor in (*weights, *given):
            tensor.grad = None
        if of.requires_grad:
            of.backward(retain_graph=True)
        return [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in by]

    found = gradient(losses.sum(), [*weights, *given])
    together, signals = found[: len(weights)], found[len(weights) :]
    alone = [_flat(gradient(loss, weights)) for loss in losses.unbind()]
    nothing = losses.new_zeros(len(losses), 1)
    return Measured(
        losses.detach(),
        _flat(together),
        torch.cat([nothing, *(own.reshape(len(losses), -1) for own in signals)], 1).detach(),
        torch.stack(alone),
    )


def moved(before: Measured, after: Measured, which: int) -> float:
    """How far the others moved when one record was replaced or left out, relative to their size.

    The gradient of the sum, less that of the one record, is what the others give to it. Where a
    number is not finite in that record's own gradient, 0 · NaN hides what the others give to a
    weight, and losses and signals are compared alone.
    """
    replaced = len(before.losses) == len(after.losses)
    first = [i for i in range(len(before.losses)) if i != which]
    second = first if replaced else list(range(len(after.losses)))
    given = before.together - before.alone[which]
    rest = after.together - (after.alone[which] if replaced else 0)
    sums = torch.cat([before.together, after.together]).abs()
    floor = 1e-6 * float(sums.nan_to_num(0, 0, 0).max())  # smaller ones are lost in rounding
    return max(
        _distance(before.losses[first], after.losses[second]),
        _distance(before.signals[first], after.signals[second]),
        _distance(*_finite(before.alone[first], after.alone[second])),
        _distance(*_finite(given, rest), floor),
    )


def moved_afterwards(case: Case, one: Any, other: Any) -> float:
    """How far a pass over the case's own batch moves if one or the other batch came before it.

    A batch without records makes no pass, as in a step.
    """
    found = []
    for first in (one, other):
        model, objective, batch = in_double(case)
        if records_of(first):
            measured(case, model, objective, first)
        found.append(measured(case, model, objective, batch))
    return max(
        _distance(getattr(found[0], what), getattr(found[1], what))
        for what in ("losses", "together", "signals")
    )


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _finite(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    both = a.isfinite() & b.isfinite()
    return a[both], b[both]


def _distance(a: Tensor, b: Tensor, floor: float = 0.0) -> float:
    """The largest difference relative to the largest number; infinite where finite meets other."""
    if not a.numel():
        return 0.0
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = _finite(a, b)
    size = max(float(torch.cat([a, b]).abs().max()) if a.numel() else 0.0, floor, 1e-30)
    return float((a - b).abs().max()) / size if a.numel() else 0.0


def what_moves_others(case: Case) -> str | None:
    """The first of many trials in which a record moves what others give, or what comes later.

    Returns:
        What was done to one record, or None where no trial showed anything.
    """
    model, objective, batch = in_double(case)
    usual = measured(case, model, objective, batch)
    random = _moved_at_all(usual, measured(replace(case, seed=1), model, objective, batch))
    for name, one, other in _trials(batch):
        if random and len(records_of(one)) != len(records_of(other)):
            continue  # the numbers that are drawn for the others are others
        before = usual if one is batch else measured(case, model, objective, one)
        after = measured(case, model, objective, other)
        if moved(before, after, difference(one, other)) > ROUNDING:
            return name
    if _moved_at_all(usual, measured(case, model, objective, batch)):
        return "what came before"
    model, objective, _ = in_double(case)
    measured(
        case,
        model,
        objective,
        batch_of(batch, [like(records_of(batch), 3.0) for _ in records_of(batch)]),
    )
    if _moved_at_all(usual, measured(case, model, objective, batch)):
        return "what came first"
    for i, record in enumerate(records_of(batch)[:3]):
        alone = measured(case, model, objective, batch_of(batch, [record])).together
        if not random and (alone - usual.alone[i]).abs().max() > ROUNDING * usual.alone.abs().max():
            return f"{i} alone"
    return None


def _moved_at_all(one: Measured, other: Measured) -> bool:
    return max(_distance(one.losses, other.losses), _distance(one.together, other.together)) > 1e-12


def _trials(batch: Any) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of batches that differ in one record: new ones, unusual values, and one left out."""
    found = records_of(batch)
    which = len(found) // 2
    for scale in (1.0, 3.0, 1000.0):
        fresh = [like(found) for _ in found]
        other = [*fresh[:which], like(found, scale), *fresh[which + 1 :]]
        yield f"times {scale:g}", batch_of(batch, fresh), batch_of(batch, other)
    floats = [i for i, own in enumerate(tensors_in(found[0])) if own.is_floating_point()]
    for position in floats:
        for value in (0.0, -1e4, 1e30, float("inf"), float("nan")):
            other = list(found)
            other[which] = with_value(found[which], position, value)
            if not same(other[which], found[which]):
                yield f"tensor {position} = {value:g}", batch, batch_of(batch, other)
    for left in (0, which, len(found) - 1):
        yield f"without {left}", batch, batch_of(batch, [*found[:left], *found[left + 1 :]])
