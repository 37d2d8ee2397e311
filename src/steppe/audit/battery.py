"""All measurements on one subject."""

from __future__ import annotations

from steppe.audit.control import control_flow, release
from steppe.audit.noise_law import noise_independence, noise_law
from steppe.audit.replay import micro_batches, sensitivity, silence
from steppe.audit.result import Result
from steppe.audit.sampler_law import sampler_law
from steppe.audit.subject import Subject


def battery(
    subject: Subject, *, trials: int = 8, draws: int = 200_000, steps: int = 100
) -> list[Result]:
    """Measure a real private step, white-box.

    Args:
        subject: what to audit.
        trials: batches of the sensitivity replay.
        draws: coordinates for the noise law.
        steps: batches of each run for the sampler law.

    Returns:
        One result for each measurement. That all pass is no proof; one that fails is a bug in the
        step, the model or the plan, except once in about 10⁵ runs.
    """
    return [
        sensitivity(subject, trials),
        silence(subject),
        micro_batches(subject),
        control_flow(subject),
        release(subject),
        *noise_law(subject, draws),
        *noise_independence(subject),
        *sampler_law(subject, steps),
    ]
