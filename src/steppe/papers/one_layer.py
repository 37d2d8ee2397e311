"""DP-SGD of a model that is linear in its weights, many thousand small steps in seconds.

With one record in a batch the engine spends its time on bookkeeping. Here a record's gradient is an
outer product, s xᵀ with s the derivative of its loss by the outputs, so that its norm is ‖s‖·‖x‖.
The plan, the sampler, the clip and the noise are those of the library; tests compare with the
engine, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steppe.clipping import Flat
from steppe.noise import Gaussian
from steppe.plan import Plan
from steppe.points import Here
from steppe.randomness import Source
from steppe.sampling import Poisson
from steppe.utils import validation

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Problem:
    """Records, and a loss of outputs = inputs · weightsᵀ.

    Args:
        inputs: records × features; append a column of ones for a bias.
        targets: one for each record.
        slope: (outputs, targets) to the derivative of each record's loss by its outputs.
    """

    inputs: Floats
    targets: NDArray[Any]
    slope: Callable[[Floats, NDArray[Any]], Floats]


def squared_error(outputs: Floats, targets: NDArray[Any]) -> Floats:
    """The derivative of (output − target)², for one output."""
    return 2 * (outputs - targets[:, None])


def cross_entropy(outputs: Floats, targets: NDArray[Any]) -> Floats:
    """The derivative of the cross-entropy: softmax minus one at the class."""
    slopes = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    slopes /= slopes.sum(axis=1, keepdims=True)
    slopes[np.arange(len(slopes)), targets] -= 1
    return slopes


def descend(
    problem: Problem,
    start: Floats,
    plan: Plan,
    source: Source,
    rate: float,
    block: int = 256,
) -> Iterator[tuple[int, Floats]]:
    """All steps of a plan, handed out a block at a time.

    Coins and noise of a block are drawn at once. A coin for each pair of a step and a record, all
    of one rate, is what the sampler draws when it is told of that many records.

    Args:
        problem: what to learn.
        start: the first weights, outputs × features.
        plan: `Poisson`, `Here`, `Flat` and `Gaussian()`, the plain choices.
        source: where coins and noise come from.
        rate: learning rate of SGD.
        block: steps in a block; with 1, a seeded run is the engine's own.

    Returns:
        (number of the first step, the weights after each step of the block). The array is reused.

    Guarantees:
        The mechanism of the plan: every step releases (clipped sum + noise)/batch_size once.
    """
    _check(plan)
    inputs, targets, slope = problem.inputs, problem.targets, problem.slope
    records, steps = len(inputs), plan.total_steps
    threshold = Poisson().threshold(plan.population or records, plan.batch_size)
    lengths = np.linalg.norm(inputs, axis=1)
    bound = np.float32(plan.sensitivity)
    weights = start.astype(np.float32)
    for first in range(0, steps, block):
        count = min(block, steps - first)
        coins = Poisson().draw(count * records, threshold, source).numpy()
        rows, ends = coins % records, np.searchsorted(coins, records * np.arange(1, count + 1))
        buffer = torch.empty(count * weights.size)
        path = (
            plan.begin_noise()
            .start_(buffer, plan.noise_std, source)
            .numpy()
            .reshape(count, *start.shape)
        )
        begin = 0
        for step, end in enumerate(ends):
            moved = path[step]
            if end > begin:
                x = inputs[rows[begin:end]]
                slopes = slope(x @ weights.T, targets[rows[begin:end]])
                norms = np.sqrt(np.square(slopes).sum(axis=1)) * lengths[rows[begin:end]]
                slopes *= (bound / np.maximum(norms, bound))[:, None]
                moved += slopes.T @ x
            moved *= -rate / plan.divisor
            moved += weights
            weights, begin = moved, end
        weights = weights.copy()
        yield first, path


def _check(plan: Plan) -> None:
    plain = {"sampling": Poisson, "point": Here, "clip": Flat, "noise": Gaussian}
    for name, kind in plain.items():
        if type(getattr(plan, name)) is not kind:
            rule = f"must be {kind.__name__} in closed form"
            raise validation.fail(name, getattr(plan, name), rule, "use make_private for others")
    if plan.l2 or plan.views > 1 or getattr(plan.noise, "grid", False):
        rule = "is not part of the closed form, like views and the grid"
        raise validation.fail("l2", plan.l2, rule, "use make_private")


class Cycles:
    """DP-SWA for several cycle lengths, from blocks of a path; counts as `steppe.SWA` does.

    Args:
        steps: length of the run.
        warmup: the share of it after which averaging begins.
        cycles: cycle lengths.

    Examples:
        >>> cycles = Cycles(10, 0.4, (2,))
        >>> cycles.absorb(0, np.arange(1.0, 11.0, dtype=np.float32)[:, None])
        >>> cycles.mean(2)
        array([7.])
    """

    def __init__(self, steps: int, warmup: float, cycles: Sequence[int]) -> None:
        self.warmup = round(warmup * steps)
        self._sums: dict[int, NDArray[np.float64] | None] = dict.fromkeys(cycles)
        self._counts = dict.fromkeys(cycles, 0)

    def absorb(self, first: int, path: Floats) -> None:
        """Take the weights after the steps that follow the first `first` ones."""
        updates = np.arange(first + 1, first + len(path) + 1)
        for cycle, before in self._sums.items():
            counted = (updates >= self.warmup) & ((updates - self.warmup) % cycle == 0)
            if counted.any():
                more = path[counted].sum(axis=0, dtype=np.float64)
                self._sums[cycle] = more if before is None else before + more
                self._counts[cycle] += int(counted.sum())

    def mean(self, cycle: int) -> NDArray[np.float64] | None:
        """The average so far, or None before the end of the warm-up."""
        total = self._sums[cycle]
        return None if total is None else total / self._counts[cycle]
