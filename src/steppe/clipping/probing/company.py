"""Does a record notice how many others there are?

Adding or removing a record is what privacy is about, so neither the losses nor the gradients of the
others may move with it. And batches are drawn at random, so a model must take any number of
records, one alone too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from steppe._modes import evaluating, without_dropout
from steppe.clipping.batches import rows
from steppe.clipping.contact import Layouts
from steppe.clipping.probing.agreement import norms_of, require_same_norms
from steppe.clipping.probing.chance import draws
from steppe.clipping.probing.sight import Subject, losses_of, unchanged
from steppe.errors import IsolationError

_DRAWS, _PASSES = 64, 20
_EVAL = "the forward pass is random: that records stand alone in company was checked in eval mode"
_ON_AVERAGE = "the forward pass is random: only the mean loss was checked for company"


def require_no_company(
    subject: Subject, batch: Any, layouts: list[Layouts], seed: int, parts: tuple[slice, ...]
) -> str | None:
    """A record's loss and gradient must not depend on how many others there are, or where.

    Args:
        subject: what is probed.
        batch: more records than a few.
        layouts: where the records lie.
        seed: for the random numbers.
        parts: of the batch, which are run without the rest of it.

    Returns:
        Why this could be checked in part only, or None.
    """
    with _without_chance(subject, batch, seed) as note:
        if note == _ON_AVERAGE:
            _require_no_company_on_average(subject, batch, seed)
            return note
        losses, norms = _losses(subject, batch, seed), norms_of(subject, batch, layouts, seed)
        for part in parts:
            fewer = rows(batch, part)
            _require_same_losses(subject, losses[part], _losses(subject, fewer, seed))
            fewer_norms = norms_of(subject, fewer, layouts, seed)
            require_same_norms(subject, norms[:, part], fewer_norms, "others were left out")
        return note


def require_no_crowd(subject: Subject, batch: Any, layouts: list[Layouts], seed: int) -> None:
    """The same for many records: room for 16 or the 32 hardest of a batch mean nothing to fewer.

    Where the forward pass is random in eval mode too, nothing is compared.
    """
    with _without_chance(subject, batch, seed) as note:
        if note == _ON_AVERAGE:
            return
        losses = _losses(subject, batch, seed)
        half = len(losses) // 2
        for part in (slice(1, None), slice(None, -1), slice(half, None), slice(None, 3)):
            _require_same_losses(subject, losses[part], _losses(subject, rows(batch, part), seed))
        few = slice(None, 3)
        among = norms_of(subject, batch, layouts, seed)[:, few]
        alone = norms_of(subject, rows(batch, few), layouts, seed)
        require_same_norms(subject, among, alone, "others were left out")


@contextmanager
def _without_chance(subject: Subject, batch: Any, seed: int) -> Iterator[str | None]:
    """The model as it is but for dropout, or in eval mode where passes differ by chance still.

    Dropout draws other numbers for another batch. Yields what is to be said of that: None where two
    passes agree as it is, and that losses can be compared on average only where they do in neither.
    """
    with ExitStack() as modes:
        modes.enter_context(without_dropout(subject.model))
        if _repeatable(subject, batch, seed):
            yield None
            return
        modes.enter_context(evaluating(subject.model))
        yield _EVAL if _repeatable(subject, batch, seed) else _ON_AVERAGE


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


def _require_same_losses(subject: Subject, among: Tensor, fewer: Tensor) -> None:
    # Another number of records may take another way through a product, which rounds otherwise.
    rounding = max(torch.finfo(weight.dtype).eps for weight in subject.parameters.values())
    if not torch.allclose(fewer, among, rtol=max(1e-3, 8 * rounding), atol=1e-5, equal_nan=True):
        raise _in_company("it did")


def _in_company(what: str) -> IsolationError:
    return IsolationError(
        "loss=moves: a record's loss must not depend on how many records there are or on its "
        f"place among them, and {what}; do not divide by the batch, count positions in it or "
        "pick some of its records."
    )


def _repeatable(subject: Subject, batch: Any, seed: int) -> bool:
    """Whether passes give the same losses whatever numbers they draw."""
    with unchanged(subject.model):
        if not draws(subject, rows(batch, slice(3)), seed):
            return True
    first = _losses(subject, batch, seed)
    # Many: an event that is rare for a record is not for all of them in all of these.
    return all(torch.equal(first, _losses(subject, batch, seed + i)) for i in range(1, _PASSES))


def _losses(subject: Subject, batch: Any, seed: int) -> Tensor:
    with unchanged(subject.model):
        return losses_of(subject, batch, seed)
