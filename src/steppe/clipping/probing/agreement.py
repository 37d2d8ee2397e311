"""Are the engine's gradients autograd's, and does each belong to its record alone?

Losses may stand alone while gradients do not: a hook or a detached factor can carry one record into
another's gradient. And adding or removing a record is what privacy is about, so the others must not
notice that either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from steppe._global_seeds import seed_everything
from steppe._text import first_line
from steppe.clipping.batches import count, each, rows
from steppe.clipping.contact import Layouts
from steppe.clipping.engine import ClippedSum
from steppe.clipping.flat import Flat
from steppe.clipping.kernels import Kernels
from steppe.clipping.probing.sight import Subject, losses_of, unchanged
from steppe.clipping.rules import RULES
from steppe.clipping.slots import NOBODY, wide, wide_dtype
from steppe.clipping.tracing import Tracer, mark
from steppe.errors import IsolationError, SteppeError, UnsupportedModelError

# float32 gradients of the same graph by two routes; a wrong rule is wrong by far more.
_TOLERANCE = 2e-3


def require_right_gradients(
    subject: Subject, batch: Any, layouts: list[Layouts], seed: int
) -> bool:
    """The engine's norms and sums against autograd's, on the same random numbers.

    Returns:
        False where autograd's own are not finite, and nothing can be compared.
    """
    factors = torch.tensor([1.0, -0.5, 2.0], device=subject.device)
    try:
        norms, total = _by_autograd(subject, batch, factors, seed)
        if not bool(torch.isfinite(norms).all()):
            return False
        found_norms, found_total = _by_engine(subject, batch, layouts, factors, seed)
    except SteppeError:
        raise
    except Exception as error:  # whatever torch or the model says
        raise UnsupportedModelError(
            "gradients=none: must be computable record by record, and torch says: "
            f"{first_line(error).rstrip('.')}; take checkpointed, compiled or scripted blocks out "
            "of the model, and keep records in torch tensors, not in arrays or lists."
        ) from error
    scales = _scales(norms)
    for i, (name, parameter) in enumerate(subject.parameters.items()):
        worst = max(
            float(((found_norms[i] - norms[i]).abs() / scales[i]).max()),
            float((found_total[i] - total[i]).norm() / scales[i].max()),
        )
        if not worst <= _TOLERANCE * _slack(parameter):
            raise UnsupportedModelError(
                f"parameter={name!r}: its per-record gradient must equal autograd's, and is off by "
                f"{worst:.1e}; report the layer, and freeze it or write it with torch.nn layers "
                "meanwhile."
            )
    return True


def require_alone(
    subject: Subject, batch: Any, replaced: list[Any], layouts: list[Layouts], seed: int
) -> None:
    """A record's gradient must not move when another one is replaced."""
    base = _norms(subject, batch, layouts, seed)
    for which, other in enumerate(replaced):
        moved = _norms(subject, other, layouts, seed)
        kept = [i for i in range(count(batch)) if i != which]
        _require_same(subject, base[:, kept], moved[:, kept], "another one was replaced")


def require_no_company(
    subject: Subject, batch: Any, layouts: list[Layouts], seed: int
) -> str | None:
    """A record's loss and gradient must not depend on how many others there are, or where.

    Args:
        subject: what is probed.
        batch: more records than a few, of which the first and the last are also run without the
            others.
        layouts: where the records lie.
        seed: for the random numbers.

    Returns:
        Why this could be checked in part only, or None.
    """
    with _without_chance(subject, batch, seed) as steady:
        if not steady:
            _require_no_company_on_average(subject, batch, seed)
            return "the forward pass is random: only the mean loss was checked for company"
        losses, norms = _losses(subject, batch, seed), _norms(subject, batch, layouts, seed)
        for part in (slice(1, None), slice(None, -1), slice(None, 3)):
            fewer = rows(batch, part)
            _require_same_losses(losses[part], _losses(subject, fewer, seed))
            fewer_norms = _norms(subject, fewer, layouts, seed)
            _require_same(subject, norms[:, part], fewer_norms, "others were left out")
    return None


def require_no_crowd(subject: Subject, batch: Any, seed: int) -> None:
    """The same for many records, by their losses alone: room for 16 or the 32 hardest of a batch
    mean nothing to fewer.

    Where the forward pass is random in eval mode too, nothing is compared.
    """
    with _without_chance(subject, rows(batch, slice(3)), seed) as steady:
        if not steady:
            return
        losses = _losses(subject, batch, seed)
        half = len(losses) // 2
        for part in (slice(1, None), slice(None, -1), slice(half, None), slice(None, 3)):
            _require_same_losses(losses[part], _losses(subject, rows(batch, part), seed))


@contextmanager
def _without_chance(subject: Subject, batch: Any, seed: int) -> Iterator[bool]:
    """The model as it is, or in eval mode where passes differ by chance.

    Dropout draws other numbers for another batch. Yields whether two passes agree now.
    """
    modes = [module.training for module in subject.model.modules()]
    try:
        steady = _repeatable(subject, batch, seed)
        if not steady:
            subject.model.eval()
            steady = _repeatable(subject, batch, seed)
        yield steady
    finally:
        _restore(subject.model, modes)


def _require_no_company_on_average(subject: Subject, batch: Any, seed: int) -> None:
    """The mean loss of one record over many random numbers, among others and alone.

    Beyond seven standard errors the difference is no chance.
    """
    alone = rows(batch, slice(1))
    among, single = (
        torch.stack([_losses(subject, some, seed + i)[0] for i in range(_DRAWS)]).double()
        for some in (batch, alone)
    )
    error = float(((among.var() + single.var()) / _DRAWS).sqrt())
    mean = float(among.mean())
    if abs(float(single.mean()) - mean) > 7 * error + 1e-3 * abs(mean) + 1e-5:
        raise _in_company("on average it did")


_DRAWS = 64


def _require_same_losses(among: Tensor, fewer: Tensor) -> None:
    if not torch.allclose(fewer, among, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise _in_company("it did")


def _in_company(what: str) -> IsolationError:
    return IsolationError(
        "loss=moves: a record's loss must not depend on how many records there are or on its "
        f"place among them, and {what}; do not divide by the batch, count positions in it or "
        "pick some of its records."
    )


def _restore(model: Module, modes: list[bool]) -> None:
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode


def _repeatable(subject: Subject, batch: Any, seed: int) -> bool:
    return torch.equal(_losses(subject, batch, seed), _losses(subject, batch, seed + 1))


def _losses(subject: Subject, batch: Any, seed: int) -> Tensor:
    with unchanged(subject.model):
        return losses_of(subject, batch, seed)


def _require_same(subject: Subject, wanted: Tensor, found: Tensor, when: str) -> None:
    # A record whose gradient is not finite counts as zero. It may be so in both.
    lost = ~torch.isfinite(wanted).all(0) & ~torch.isfinite(found).all(0)
    wanted, found = wanted.masked_fill(lost, 0.0), found.masked_fill(lost, 0.0)
    off = ((found - wanted).abs() / _scales(wanted)).amax(1)
    for name, parameter, error in zip(
        subject.parameters, subject.parameters.values(), off.tolist(), strict=True
    ):
        if not error <= _TOLERANCE * _slack(parameter):
            raise IsolationError(
                f"parameter={name!r}: a record's gradient must not depend on other records, and it "
                f"moved by {error:.1e} of its size when {when}; keep the records apart in the "
                "backward pass too."
            )


def _scales(norms: Tensor) -> Tensor:
    """What to measure errors by: a gradient that is zero on paper by the record's whole one."""
    return torch.maximum(norms, 1e-3 * norms.square().sum(0).sqrt() + 1e-8)


def _slack(parameter: Tensor) -> float:
    ratio = torch.finfo(parameter.dtype).eps / torch.finfo(torch.float32).eps
    return max(1.0, ratio / 500)


def _engine(subject: Subject, layouts: list[Layouts]) -> ClippedSum:
    kernels = Kernels(measure=False)
    return ClippedSum(
        subject.parameters, subject.objective, Flat(), layouts=layouts, kernels=kernels
    )


def _norms(subject: Subject, batch: Any, layouts: list[Layouts], seed: int) -> Tensor:
    """‖Gᵢ‖ by weight and record, as the engine sees it."""
    place = {id(leaf): i for i, leaf in enumerate(subject.parameters.values())}
    norms = torch.zeros(len(place), count(batch), dtype=torch.float64, device=subject.device)
    seed_everything(seed)
    with torch.no_grad(), unchanged(subject.model):
        for leaf, slot in _engine(subject, layouts).slots(batch):
            norms[place[id(leaf)]] = slot.squared_norms().double().sqrt()
    return norms


def _by_engine(
    subject: Subject, batch: Any, layouts: list[Layouts], factors: Tensor, seed: int
) -> tuple[Tensor, list[Tensor]]:
    """Norms (weight, record) and Σᵢ factorᵢ gᵢ, the engine's way."""
    leaves = list(subject.parameters.values())
    place = {id(leaf): i for i, leaf in enumerate(leaves)}
    norms = factors.new_zeros(len(leaves), len(factors), dtype=torch.float64)
    # Of the weight's shape, not of its strides: slots add to flat buffers, also for weights in
    # channels-last order.
    total = [leaf.new_zeros(leaf.shape, dtype=wide_dtype(leaf)) for leaf in leaves]
    seed_everything(seed)
    with torch.no_grad(), unchanged(subject.model):
        for leaf, slot in _engine(subject, layouts).slots(batch):
            i = place[id(leaf)]
            norms[i] = slot.squared_norms().double().sqrt()
            slot.add_(total[i].view(-1), factors.to(total[i].dtype), NOBODY)
    return norms, total


def _by_autograd(
    subject: Subject, batch: Any, factors: Tensor, seed: int
) -> tuple[Tensor, list[Tensor]]:
    """The same from one plain graph and one backward pass for each record."""
    leaves = list(subject.parameters.values())
    norms = factors.new_zeros(len(leaves), len(factors), dtype=torch.float64)
    total = [torch.zeros_like(leaf, dtype=wide_dtype(leaf)) for leaf in leaves]
    alias = each(torch.clone, batch)
    mark(alias)
    seed_everything(seed)
    with unchanged(subject.model), torch.enable_grad():
        with Tracer(len(factors), RULES, capture=False):
            losses = subject.objective(alias)
        for record, factor in enumerate(factors.tolist()):
            grads = torch.autograd.grad(
                losses[record], leaves, allow_unused=True, retain_graph=True
            )
            for i, grad in enumerate(grads):
                if grad is not None:
                    norms[i, record] = wide(grad).double().norm()
                    total[i].add_(wide(grad), alpha=factor)
    return norms, total
