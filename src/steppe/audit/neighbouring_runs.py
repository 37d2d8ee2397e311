"""Whole runs on neighbouring data sets with the same noise, compared in all that they release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.audit.replay import ROUNDING
from steppe.audit.result import Result
from steppe.audit.subject import AuditedRun, FixedBatches, released
from steppe.clipping import State
from steppe.randomness import SeededSource
from steppe.utils.batches import rows
from steppe.utils.module_modes import without_dropout

_BATCH = 6
_SEED = 20_172


@dataclass(frozen=True)
class _Trace:
    """What an observer sees of a run."""

    public: dict[str, Any]
    releases: list[Tensor]


def control_flow(subject: AuditedRun) -> Result:
    """Whether a record's presence changes anything but the sum.

    Every record's loss is made non-finite, so the sum is zero whoever takes part. What is left of
    a release is noise over divisor, which must be the same to the last bit with one record less in
    the data set and in every batch, and for many records as for none.

    Args:
        subject: what to audit.

    Returns:
        The largest difference of two releases in units of the noise; infinite where a public number
        differs (rate, divisor, steps, noise, cap, shapes, digest of the plan, what the clip has
        learnt) or a run stops.
    """
    length = len(subject.records)
    batch = subject.records.batch(torch.arange(min(_BATCH, length)))
    nobody = rows(batch, slice(0, 0))
    script = [batch, rows(batch, slice(0, 1)), nobody, batch]
    neighbour = [rows(batch, slice(1, None)), nobody, nobody, nobody]
    here = _run(subject, script, length, math.nan)
    gone = _run(subject, neighbour, _length_without(subject), math.nan)
    differing = [name for name in here.public if here.public[name] != gone.public[name]]
    if differing or here.public["outcome"] != "finished":
        named = ", ".join(f"{n} {here.public[n]!r} / {gone.public[n]!r}" for n in differing)
        text = f"with and without a record: {named or here.public['outcome']}"
        return Result("control flow", False, math.inf, 0.0, text)
    unit = subject.plan.noise_std / subject.plan.divisor
    apart = [
        float((a - b).abs().max()) / unit for a, b in zip(here.releases, gone.releases, strict=True)
    ]
    worst = max(value if value == value else math.inf for value in apart)
    text = f"{len(here.public)} public numbers agree and releases differ by {worst:.2g} noise units"
    return Result.at_most("control flow", worst, 0.0, text)


def release(subject: AuditedRun) -> Result:
    """How far one record moves what a whole step releases, with the noise cancelled.

    Args:
        subject: what to audit.

    Returns:
        The largest ‖release with the record − release of an empty batch‖, in units of
        sensitivity / divisor.

    Guarantees:
        Measured at the gradient that the optimizer gets, so it covers sampling, clip, noise and
        division together, for any number of queries in a step.
    """
    length = len(subject.records)
    batch = subject.records.batch(torch.arange(1))
    empty = _run(subject, [rows(batch, slice(0, 0))], _length_without(subject), 1.0)
    unit = subject.plan.sensitivity / subject.plan.divisor
    moves: list[tuple[float, float]] = []
    for scale in (1.0, 1e3, 1e6, math.nan):
        found = _run(subject, [batch], length, scale)
        if found.public["outcome"] != "finished" or empty.public["outcome"] != "finished":
            text = f"a step failed: {found.public['outcome']} / {empty.public['outcome']}"
            return Result("release", False, math.inf, 1.0, text)
        moved = float((found.releases[0] - empty.releases[0]).norm()) / unit
        moves.append((moved if moved == moved else math.inf, scale))
    worst, scale = max(moves)
    # Sum and noise are added in float32, so the rounding of the noise joins in.
    rounding = subject.plan.sigma * math.sqrt(empty.releases[0].numel()) * 2.0**-23
    text = f"one record (loss times {scale:g}) moved the release by {worst:.6g} C/B, the most found"
    return Result.at_most("release", worst, 1 + ROUNDING + rounding, text)


def _length_without(subject: AuditedRun) -> int:
    """The neighbour's number of records: one less, unless the plan declares it public."""
    return len(subject.records) - (subject.plan.adjacency == "add-remove")


def _run(subject: AuditedRun, script: Sequence[Any], length: int, scale: float) -> _Trace:
    """Step through given batches from a fixed seed, with every loss multiplied by `scale`."""
    private = subject.private(
        FixedBatches(subject.records, length, script), SeededSource(_SEED), steps=len(script)
    )
    engine, plain, plan = private.engine, private.engine.objective, private.plan
    engine.exchange_objective_(lambda batch: plain(batch) * scale)
    engine.passes.paths = None  # which are proven without the factor
    releases: list[Tensor] = []
    learnt: list[dict[str, float]] = []
    outcome = "finished"
    with without_dropout(private.model):
        try:
            for batch in private:
                private.step(batch)
                releases.append(released(private))
                learnt.append(_numbers(engine.clipper.state()))
        except Exception as error:  # an error that depends on a record is a release too
            outcome = f"{type(error).__name__} in step {private.steps_done}"
    steps = range(plan.total_steps)
    shapes = [(tuple(p.shape), p.dtype) for p in private.engine.parameters.values()]
    public = {
        "outcome": outcome,
        "digest of the plan": plan.digest(),
        "rate": plan.rate,
        "divisor": plan.divisor,
        "cap": plan.cap,
        "noise": [plan.noise_std_at(step) for step in steps],
        "steps": (plan.total_steps, private.steps_done, len(releases), len(private)),
        "shapes": (shapes, [len(vector) for vector in releases]),
        "physical batch": engine.physical_batch,
        "what the clip learnt": learnt,
    }
    return _Trace(public, releases)


def _numbers(state: State) -> dict[str, float]:
    """A clip's state in numbers that differ where the state does."""
    return {
        name: float(value.double().sum() if isinstance(value, Tensor) else value)
        for name, value in state.items()
    }
