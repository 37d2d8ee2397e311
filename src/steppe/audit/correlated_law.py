"""Correlated noise over a whole run that is resumed half way: its law, and what a record moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.audit.result import SURPRISE, Result, surprise
from steppe.audit.subject import AuditedRun, EmptyBatches, released
from steppe.plan import Plan
from steppe.randomness import SecureSource, SeededSource, Source
from steppe.records import Records

_SEED = 20_173


class OneRecord(Records):
    """A data set whose batches contain one record, where it was drawn, and nobody else.

    Args:
        base: the records.
        row: the number of the record.
    """

    def __init__(self, base: Records, row: int) -> None:
        self._base, self._row = base, row

    def __len__(self) -> int:
        return len(self._base)

    def batch(self, rows: Tensor) -> Any:
        """The record, if its row is among them."""
        return self._base.batch(rows[rows == self._row])


def correlated_noise(subject: AuditedRun) -> list[Result]:
    """Whether the noise of a whole run has the planned covariance, also across a resume.

    Releases of empty batches are turned into what should be independent noise of unit size, with
    the inverse root of the planned covariance.

    Args:
        subject: what to audit, with correlated noise.

    Returns:
        Two results: the surprise of the values' variance (χ²) and shape (Kolmogorov-Smirnov), and
        of the largest correlation of two steps.
    """
    from scipy import linalg, stats

    plan = subject.plan
    releases = torch.stack([*_run(subject, EmptyBatches(subject.records), SecureSource)]).numpy()
    unit = plan.noise_std / plan.divisor
    decoder = plan.noise_factor.decoder()
    root = np.linalg.cholesky(decoder @ decoder.T)
    values = linalg.solve_triangular(root, releases / unit, lower=True)
    count, width = values.size, values.shape[1]
    squares = float(np.square(values).sum())
    p_values = {
        "variance": 2 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)),
        "shape": stats.kstest(values.ravel(), "norm").pvalue,
    }
    which, p_value = min(p_values.items(), key=lambda item: item[1])
    text = f"std is {math.sqrt(squares / count):.4f} of the plan's; least likely: {which}"
    pairs = np.corrcoef(values)[np.triu_indices(len(values), 1)]
    largest = float(np.abs(pairs).max())
    # Of two independent rows; Fisher's transform is normal also for few coordinates.
    p_pair = 2 * stats.norm.sf(math.atanh(min(largest, 1 - 1e-16)) * math.sqrt(width - 3))
    return [
        Result.at_most("correlated noise", surprise(p_value), SURPRISE, text),
        Result.at_most(
            "noise of two steps",
            surprise(min(1.0, p_pair * len(pairs))),
            SURPRISE,
            f"largest correlation of {len(pairs)} pairs of steps is {largest:.3f}",
        ),
    ]


def several_turns(subject: AuditedRun) -> Result:
    """How far a record moves a whole run in which it takes part several times, noise cancelled.

    Args:
        subject: what to audit, with correlated noise and a fixed order.

    Returns:
        The norm of C times the moves of all steps, in units of the planned sensitivity.
    """
    plan = subject.plan
    records = subject.records
    first = plan.sampling.begin(len(records), len(records), plan.batch_size, None)
    row = int(first(0, SecureSource())[0])

    def seeded() -> Source:
        return SeededSource(_SEED)

    here = torch.stack([*_run(subject, OneRecord(records, row), seeded)])
    gone = torch.stack([*_run(subject, EmptyBatches(records), seeded)])
    moved = plan.noise_factor.encoder() @ ((here - gone) * plan.divisor).numpy()
    bound = plan.sensitivity * plan.noise_sensitivity
    # Sum and noise are added in float32, whose rounding is not cancelled.
    rounding = plan.sigma * math.sqrt(moved.size) * 2.0**-22
    text = f"one record moved C times the releases by {np.linalg.norm(moved) / bound:.6g} of s C"
    return Result.at_most(
        "several turns", float(np.linalg.norm(moved)) / bound, 1 + 1e-5 + rounding, text
    )


def _run(subject: AuditedRun, data: Records, source: Any) -> Iterator[Tensor]:
    """What every step releases, in float64; another private object takes the second half."""
    plan: Plan = subject.plan
    half = plan.total_steps // 2
    private = subject.private(data, source())
    for batch in private.batches(half):
        private.step(batch)
        yield released(private, padding=False)
    second = subject.private(data, private._step.mechanism.source)
    second.model.load_state_dict(private.model.state_dict())
    second.optimizer.load_state_dict(private.optimizer.state_dict())
    second.load_state_dict(private.state_dict())
    for batch in second:
        second.step(batch)
        yield released(second, padding=False)
