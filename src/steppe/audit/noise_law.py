"""The noise in released vectors: its size, its distribution, and whether values repeat."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from steppe.audit.result import SURPRISE, Result, surprise
from steppe.audit.subject import AuditedRun, EmptyBatches, released
from steppe.private import Private
from steppe.randomness import global_generators_kept, seed_global_generators

# Two float32 draws rarely coincide; half precision or a repeated stream does it all the time.
_REPEATS = 0.02
_FEW = 100_000  # values of which chance alone makes 0.07 % equal; of three million it makes 2 %


def noise_law(subject: AuditedRun, draws: int = 200_000) -> list[Result]:
    """Whether what an empty batch releases is N(0, (σC/B)²) in every coordinate.

    Args:
        subject: what to audit.
        draws: how many coordinates to collect, over as many steps as that takes.

    Returns:
        Two results: the surprise of mean, variance (χ²) and shape (Kolmogorov-Smirnov), and the
        relative error of the standard deviation against its own 10⁻⁶ interval.
    """
    from scipy import stats

    private = subject.private(EmptyBatches(subject.records), steps=1)
    steps = max(1, math.ceil(draws / private.engine.width))
    private = subject.private(EmptyBatches(subject.records), steps=steps)
    plan = private.plan
    pieces = [
        vector / (plan.noise_std_at(step) / plan.divisor)
        for step, vector in enumerate(_releases(private, steps))
    ]
    values = torch.cat(pieces).numpy()
    count = len(values)
    squares = float(np.square(values).sum())
    p_values = {
        "mean": 2 * stats.norm.sf(abs(values.mean()) * math.sqrt(count)),
        "variance": 2 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)),
        "shape": stats.kstest(values, "norm").pvalue,
    }
    which, p_value = min(p_values.items(), key=lambda item: item[1])
    ratio = math.sqrt(squares / count)
    text = (
        f"std is {ratio:.4f} of σC/B over {count} draws; least likely: {which}, p = {p_value:.2g}"
    )
    width = float(stats.norm.isf(0.5e-6)) / math.sqrt(2 * count)
    return [
        Result.at_most("noise law", surprise(p_value), SURPRISE, text),
        Result.at_most(
            "noise std", abs(ratio - 1), width, f"relative error of the std, {count} draws"
        ),
    ]


def noise_independence(subject: AuditedRun, steps: int = 6) -> list[Result]:
    """Whether noise repeats or correlates: in a step, between steps, runs and forked processes.

    Both runs start after the same `manual_seed`, as scripts do: it must not reach the noise.

    Args:
        subject: what to audit.
        steps: how many releases to take of each of two runs.

    Returns:
        Two results: the largest share of equal values, and the surprise of the largest correlation.
    """
    from scipy import stats

    vectors: dict[str, Tensor] = {}
    with global_generators_kept():
        for run in "AB":
            seed_global_generators(0)
            private = subject.private(EmptyBatches(subject.records), steps=steps + 1)
            for step, vector in enumerate(_releases(private, steps)):
                vectors[f"{run}{step}"] = vector
    if hasattr(os, "fork"):
        vectors["child"] = _in_child(private)
        vectors["parent"] = next(_releases(private, 1))
    repeats = [(_repeats(v), name) for name, v in vectors.items()]
    correlations = [(_correlation(v[:-1], v[1:]), len(v) - 1, name) for name, v in vectors.items()]
    names = list(vectors)
    for i, one in enumerate(names):
        for other in names[:i]:
            a, b = vectors[one], vectors[other]
            repeats.append((float((a == b).double().mean()), f"{other} and {one}"))
            correlations.append((_correlation(a, b), len(a), f"{other} and {one}"))
    most, where = max(repeats)
    p_values = [
        (min(1.0, 2 * stats.norm.sf(abs(r) * math.sqrt(n)) * len(correlations)), name)
        for r, n, name in correlations
    ]
    p_value, pair = min(p_values)
    return [
        Result.at_most("noise repeats", most, _REPEATS, f"share of equal values, worst in {where}"),
        Result.at_most("noise correlation", surprise(p_value), SURPRISE, f"least likely in {pair}"),
    ]


def _releases(private: Private, steps: int) -> Iterator[Tensor]:
    batches = private.batches(steps)
    for batch in batches:
        private.step(batch)
        yield released(private, padding=False)


def _repeats(values: Tensor) -> float:
    """The share of repeated values: among a few values, and among all pairs of adjacent values.

    Too few distinct values show among a few. Whatever is handed out again, however much later, has
    the same neighbours, and two pairs are never the same by chance.
    """
    few = values[:: math.ceil(len(values) / _FEW)]
    pairs = values[:-1] + math.sqrt(2) * values[1:]
    return max(1 - len(some.unique()) / len(some) for some in (few, pairs) if len(some))


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; 1 where a side does not vary, since constant noise is no noise."""
    a, b = a - a.mean(), b - b.mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale > 0 else 1.0


def _in_child(private: Private) -> Tensor:
    """The next release as a forked process makes it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a child must not wait for threads that it did not inherit
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as stream:
                stream.write(next(_releases(private, 1)).numpy().tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        content = stream.read()
    os.waitpid(child, 0)
    torch.set_num_threads(threads)
    return torch.from_numpy(np.frombuffer(content, dtype=np.float64).copy())
