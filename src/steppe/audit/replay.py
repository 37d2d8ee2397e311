"""The same batch with and without one record: how far does the clipped sum move?"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from steppe.audit.adversarial_records import adversarial_batches
from steppe.audit.result import Result
from steppe.audit.subject import AuditedRun
from steppe.clipping import ClippedSum
from steppe.utils.batches import rows
from steppe.utils.module_modes import without_dropout

# Rounding of a float32 sum over a small batch, in units of the clip.
ROUNDING = 1e-5
_BATCH = 8
_SEED = 20_171


def sensitivity(subject: AuditedRun, trials: int = 8) -> Result:
    """How far one adversarial record moves the clipped sum, with the noise off.

    Args:
        subject: what to audit.
        trials: how many batches to try; each meets every kind of adversarial record.

    Returns:
        The largest ‖sum with the record − sum without it‖ in units of the plan's sensitivity.

    Guarantees:
        A pass covers the records that were tried, at the weights that the subject starts from.
    """
    moves: list[tuple[float, str]] = []
    with _engine(subject) as engine:
        for base, attacks in _batches(subject, trials):
            without = clipped_sum(engine, rows(base, slice(0, -1)))
            for name, pair in attacks:
                moved = clipped_sum(engine, pair) - without
                moves.append((_norm(moved) / subject.plan.sensitivity, name))
    worst, culprit = max(moves)
    text = f"one record ({culprit}) moved the clipped sum by {worst:.6g} C, the most found"
    return Result.at_most("sensitivity", worst, 1 + ROUNDING, text)


def non_finite_records(subject: AuditedRun, trials: int = 4) -> Result:
    """Whether a record with a non-finite gradient changes anything.

    Args:
        subject: what to audit.
        trials: how many batches to try.

    Returns:
        The largest ‖sum with the record − sum without it‖ in units of the plan's sensitivity; it
        is infinite where two such records in the same place give sums that differ in any bit.
    """
    worst, kinds = 0.0, 0
    with _engine(subject) as engine:
        for base, attacks in _batches(subject, trials):
            without = clipped_sum(engine, rows(base, slice(0, -1)))
            first: Tensor | None = None
            for _, pair in attacks:
                found, norms = _sum_and_norms(engine, pair)
                if torch.isfinite(norms[-1]):
                    continue
                kinds += 1
                first = found if first is None else first
                worst = max(worst, _norm(found - without) / subject.plan.sensitivity)
                if not torch.equal(found, first):
                    worst = math.inf
    text = f"{kinds} records with non-finite gradients moved the sum by at most {worst:.2g} C"
    return Result.at_most("non_finite_records", worst if kinds else math.inf, ROUNDING, text)


def micro_batches(subject: AuditedRun, trials: int = 2) -> Result:
    """Whether physical batches give the sum of the whole batch.

    Args:
        subject: what to audit.
        trials: how many batches to try.

    Returns:
        The largest ‖sum over physical batches − sum of the whole‖ in units of the plan's
        sensitivity.
    """
    worst = 0.0
    with _engine(subject) as engine:
        for base, _ in _batches(subject, trials):
            engine.physical_batch = None
            whole = clipped_sum(engine, base)
            for engine.physical_batch in (1, 3):
                pieces = clipped_sum(engine, base)
                worst = max(worst, _norm(pieces - whole) / subject.plan.sensitivity)
    text = f"pieces of 1 and 3 records against the whole batch differ by {worst:.2g} C"
    return Result.at_most("micro-batches", worst, ROUNDING, text)


def clipped_sum(engine: ClippedSum, batch: Any) -> Tensor:
    """What the engine adds to an empty buffer for this batch, in float64."""
    return _sum_and_norms(engine, batch)[0]


def _sum_and_norms(engine: ClippedSum, batch: Any) -> tuple[Tensor, Tensor]:
    double = all(p.dtype == torch.float64 for p in engine.parameters.values())
    buffer = torch.zeros(engine.width, dtype=torch.float64 if double else torch.float32)
    norms = engine.add_(buffer, batch)
    return buffer.double(), norms


def _norm(difference: Tensor) -> float:
    """The l2 norm, with NaN as infinity: a sum that is not a number hides nothing."""
    norm = float(difference.norm())
    return norm if norm == norm else math.inf


@contextmanager
def _engine(subject: AuditedRun) -> Iterator[ClippedSum]:
    """The engine of a real run, asked for (batch, factor on each record's loss)."""
    private = subject.private()
    engine = copy.copy(private.engine)
    plain = engine.objective
    engine.exchange_objective_(lambda pair: plain(pair[0]) * pair[1])
    engine.passes.paths = None  # which are proven without the factor
    with without_dropout(private.model):
        yield engine


def _batches(
    subject: AuditedRun, trials: int
) -> Iterator[tuple[tuple[Any, Tensor], Iterator[tuple[str, Any]]]]:
    """Small random batches, and what their last record turns into."""
    generator = torch.Generator().manual_seed(_SEED)
    records = subject.records
    for _ in range(trials):
        chosen = torch.randperm(len(records), generator=generator)[:_BATCH]
        batch, scales = records.batch(chosen), torch.ones(len(chosen))
        yield (batch, scales), adversarial_batches(batch, scales, generator)
