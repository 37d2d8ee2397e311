"""Compares the engine's per-example gradients with autograd's, and checks that they are isolated.

Losses may be isolated although gradients are not: a hook or a detached factor can make one record's
gradient depend on another record.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steppe.clipping import ClippedSum, Flat
from steppe.errors import IsolationError, SteppeError, UnsupportedModelError
from steppe.gradients import (
    NO_RECORDS,
    RULES,
    ContactLayout,
    Kernels,
    Path,
    Tracer,
    WeightSlots,
    checkpointed,
    mark,
    unchanged,
    value_free,
    wide,
    wide_dtype,
)
from steppe.probing.observed_pass import ProbedModel
from steppe.randomness import seed_global_generators
from steppe.utils.batches import count, each, tensors_in
from steppe.utils.formatting import as_said

# For float32 gradients computed in two ways; the error of a wrong rule is far larger.
_TOLERANCE = 2e-3


Paths = frozenset[Path] | None


def require_right_gradients(
    probed: ProbedModel, batch: Any, layouts: list[ContactLayout], paths: Paths, seed: int
) -> frozenset[str]:
    """Compare the engine's norms and sums with autograd's, with the same random numbers.

    Returns:
        The names of the weights that affect the loss.
    """
    factors = torch.tensor([1.0, -0.5, 2.0], device=probed.device)[: count(batch)]
    try:
        norms, total, reaching = _by_autograd(probed, batch, factors, seed)
        if not bool(torch.isfinite(norms).all()):
            raise _not_finite()
        found_norms, found_total = _by_engine(probed, batch, layouts, paths, seed, factors)
    except SteppeError:
        raise
    except Exception as error:  # whatever error torch or the model raises
        if "checkpoint" in str(error):
            raise checkpointed() from error
        raise UnsupportedModelError(
            "gradients=none: must be computable for every record; take compiled or scripted blocks "
            "out of the model, and keep records in torch tensors, not in arrays or lists.\n"
            + as_said(error)
        ) from error
    scales = _scales(norms)
    for i, (name, parameter) in enumerate(probed.parameters.items()):
        worst = max(
            float(((found_norms[i] - norms[i]).abs() / scales[i]).max()),
            float((found_total[i] - total[i]).norm() / scales[i].max()),
        )
        if not worst <= _TOLERANCE * _slack(parameter):
            raise UnsupportedModelError(
                f"parameter={name!r}: its per-example gradient must equal autograd's, and is off "
                f"by {worst:.1e}; report the layer, and freeze it or write it with torch.nn layers "
                "meanwhile."
            )
    return reaching


def require_extremes_apart(
    probed: ProbedModel, batch: Any, layouts: list[ContactLayout], paths: Paths, seed: int
) -> None:
    """Require that a record of infinities, NaN or huge numbers does not change others' gradients.

    Values for which model or loss raise an error are skipped.
    """
    numbers = [t for t in tensors_in(batch) if t.is_floating_point()]
    if not numbers:
        return
    base, _ = _by_engine(probed, batch, layouts, paths, seed)
    for name, value in _EXTREMES.items():
        extreme = each(functools.partial(_with_extreme, value=value), batch)
        moved = _norms_if_taken(probed, extreme, layouts, paths, seed)
        if moved is not None:
            require_same_norms(probed, base[:, 1:], moved[:, 1:], f"another one held {name}")


def _norms_if_taken(
    probed: ProbedModel, batch: Any, layouts: list[ContactLayout], paths: Paths, seed: int
) -> Tensor | None:
    try:
        return _by_engine(probed, batch, layouts, paths, seed)[0]
    except SteppeError:
        raise
    except Exception:  # such as an assertion, which would also stop a step with such records
        return None


_EXTREMES: dict[str, Callable[[torch.finfo], float]] = {
    "inf": lambda info: math.inf,
    "NaN": lambda info: math.nan,
    "the largest number": lambda info: info.max,
}


def _with_extreme(tensor: Tensor, value: Callable[[torch.finfo], float]) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    changed = tensor.clone()
    changed[0] = value(torch.finfo(tensor.dtype))
    return changed


def _not_finite() -> UnsupportedModelError:
    return UnsupportedModelError(
        "gradients=not finite: must be numbers on inputs from N(0, 1) or [0, 1) with labels 0 and "
        "1; check the scale of the initial weights, and roots and logarithms near zero."
    )


def require_same_norms(probed: ProbedModel, wanted: Tensor, found: Tensor, when: str) -> None:
    """Require equal norms (weight, record), up to rounding."""
    # A record whose gradient is not finite counts as zero. It may be infinite in both.
    lost = ~torch.isfinite(wanted).all(0) & ~torch.isfinite(found).all(0)
    wanted, found = wanted.masked_fill(lost, 0.0), found.masked_fill(lost, 0.0)
    off = ((found - wanted).abs() / _scales(wanted)).amax(1)
    for name, parameter, error in zip(
        probed.parameters, probed.parameters.values(), off.tolist(), strict=True
    ):
        if not error <= _TOLERANCE * _slack(parameter):
            finite = math.isfinite(error)
            moved = f"moved by {error:.1e} of its size" if finite else "was not finite any more"
            raise IsolationError(
                f"parameter={name!r}: a record's gradient must not depend on other records, and it "
                f"{moved} when {when}; keep the records apart in the backward pass too."
            )


def _scales(norms: Tensor) -> Tensor:
    """The scale of errors: the gradient's norm, or the record's whole one where that is zero."""
    return torch.maximum(norms, 1e-3 * norms.square().sum(0).sqrt() + 1e-8)


def _slack(parameter: Tensor) -> float:
    ratio = torch.finfo(parameter.dtype).eps / torch.finfo(torch.float32).eps
    return max(1.0, ratio / 500)


def _slots(
    probed: ProbedModel, batch: Any, layouts: list[ContactLayout], paths: Paths
) -> WeightSlots:
    """The gradients, computed as in a step."""
    engine = ClippedSum(
        probed.parameters,
        probed.objective,
        Flat(),
        layouts=layouts,
        kernels=Kernels(measure=False),
    )
    engine.passes.expect(layouts, paths)
    return engine.slots(batch, sequential=engine.sequential())


def _by_engine(
    probed: ProbedModel,
    batch: Any,
    layouts: list[ContactLayout],
    paths: Paths,
    seed: int,
    factors: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Norms (weight, record), and, with factors, Σᵢ factorᵢ gᵢ of every weight."""
    leaves = list(probed.parameters.values())
    place = {id(leaf): i for i, leaf in enumerate(leaves)}
    norms = torch.zeros(len(leaves), count(batch), dtype=torch.float64, device=probed.device)
    # With the weight's shape but not its strides, because slots add to flat buffers, also for
    # weights in channels-last order.
    total = [leaf.new_zeros(leaf.shape, dtype=wide_dtype(leaf)) for leaf in leaves]
    seed_global_generators(seed)
    with torch.no_grad(), unchanged(probed.model):
        for leaf, slot in _slots(probed, batch, layouts, paths):
            i = place[id(leaf)]
            norms[i] = slot.squared_norms().double().sqrt()
            if factors is not None:
                slot.add_(total[i].view(-1), factors.to(total[i].dtype), NO_RECORDS)
    return norms, total


def _by_autograd(
    probed: ProbedModel, batch: Any, factors: Tensor, seed: int
) -> tuple[Tensor, list[Tensor], frozenset[str]]:
    """The same from one plain graph and one backward pass for each record, and the names of the
    weights that these passes come to."""
    leaves, reaching = list(probed.parameters.values()), set()
    norms = factors.new_zeros(len(leaves), len(factors), dtype=torch.float64)
    total = [torch.zeros_like(leaf, dtype=wide_dtype(leaf)) for leaf in leaves]
    alias = each(torch.clone, batch)
    tracer = Tracer(len(factors), RULES, capture=False)
    mark(alias, tracer.number)
    seed_global_generators(seed)
    with unchanged(probed.model), torch.enable_grad():
        with tracer, value_free():
            losses = probed.objective(alias)
        if not losses.requires_grad:
            raise UnsupportedModelError(
                f"parameters={list(probed.parameters)[:3]}: some trained weight must reach the "
                "loss, and none does, so that noise alone would move them; use them in the forward "
                "pass without detach() or no_grad(), switch on adapters such as LoRA, or train "
                "other weights."
            )
        for record, factor in enumerate(factors.tolist()):
            grads = torch.autograd.grad(
                losses[record], leaves, allow_unused=True, retain_graph=True
            )
            for i, (name, grad) in enumerate(zip(probed.parameters, grads, strict=True)):
                if grad is not None:
                    reaching.add(name)
                    norms[i, record] = wide(grad).double().norm()
                    total[i].add_(wide(grad), alpha=factor)
    return norms, total, frozenset(reaching)
