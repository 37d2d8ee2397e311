"""All measurements on one subject."""

from __future__ import annotations

import math
from collections.abc import Callable

from steppe.audit.correlated_law import correlated_noise, several_turns
from steppe.audit.neighbouring_runs import control_flow, release
from steppe.audit.noise_law import noise_independence, noise_law
from steppe.audit.replay import micro_batches, non_finite_records, sensitivity
from steppe.audit.result import Result
from steppe.audit.sampler_law import sampler_law
from steppe.audit.subject import AuditedRun
from steppe.noise import Correlated
from steppe.sampling import FixedOrder


def battery(
    subject: AuditedRun, *, trials: int = 8, draws: int = 200_000, steps: int = 100
) -> list[Result]:
    """Measure a real private step, white-box.

    Args:
        subject: what to audit.
        trials: batches of the sensitivity replay.
        draws: coordinates for the noise law.
        steps: batches of each run for the sampler law.

    Returns:
        One result for each measurement. Runs with correlated noise are measured as a whole, with a
        resume half way, instead of step by step. That all pass is no proof; one that fails is a bug
        in the step, the model or the plan, except once in about 10⁵ runs.

    Raises:
        SteppeError: the subject cannot be built at all; its message says why.
    """
    subject.private()
    if isinstance(subject.plan.noise, Correlated):
        results = [
            *checked("sensitivity", lambda: sensitivity(subject, trials)),
            *checked("non_finite_records", lambda: non_finite_records(subject)),
            *checked("micro-batches", lambda: micro_batches(subject)),
            *checked("correlated noise", lambda: correlated_noise(subject)),
        ]
        if isinstance(subject.plan.sampling, FixedOrder):
            results += checked("several turns", lambda: several_turns(subject))
        return results
    return [
        *checked("sensitivity", lambda: sensitivity(subject, trials)),
        *checked("non_finite_records", lambda: non_finite_records(subject)),
        *checked("micro-batches", lambda: micro_batches(subject)),
        *checked("control flow", lambda: control_flow(subject)),
        *checked("release", lambda: release(subject)),
        *checked("noise law", lambda: noise_law(subject, draws)),
        *checked("noise independence", lambda: noise_independence(subject)),
        *checked("sampler law", lambda: sampler_law(subject, steps)),
    ]


def checked(name: str, check: Callable[[], Result | list[Result]]) -> list[Result]:
    """The results of a check; one that stops with an error has failed.

    Args:
        name: what the failure is called.
        check: makes the measurement.

    Examples:
        >>> checked("division", lambda: 1 / 0)[0].text
        'stopped by ZeroDivisionError: division by zero'
    """
    try:
        found = check()
    except Exception as error:  # whatever it is, the promised measurement was not possible
        text = f"stopped by {type(error).__name__}: {error}"
        return [Result(name, False, math.inf, 0.0, text)]
    return found if isinstance(found, list) else [found]
