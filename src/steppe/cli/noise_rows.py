"""What `steppe noise` compares: one plan for each noise, with the sampler that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.noise import (
    BISR,
    BLT,
    BandedToeplitz,
    BandInvMF,
    Correlated,
    Dense,
    Gaussian,
    SqrtToeplitz,
    Tree,
    prefix_sum,
)
from steppe.plan import Plan
from steppe.sampling import CyclicPoisson, FixedOrder, Poisson
from steppe.utils import validation

_BANDS, _BUFFERS = (2, 8, 32), (1, 2, 3, 4)
_DENSE_STEPS = 512
# An error this much above the least is not worth another vector.
_CLOSE = 1.01


@dataclass(frozen=True)
class NoiseRow:
    """One noise in one run.

    Args:
        plan: of the run.
        momentum: of the optimizer.
    """

    plan: Plan
    momentum: float

    @property
    def name(self) -> str:
        """The noise and how records are sampled, in short."""
        kind, sampler = type(self.plan.noise).__name__, self.plan.sampling
        options = ""
        for name in ("bands", "buffers"):
            if (value := getattr(self.plan.noise, name, None)) is not None:
                options = f"({value})"
        if isinstance(self.plan.noise, Tree):
            options = "" if self.plan.noise.honaker else "(honaker=False)"
        ways = {Poisson: ", Poisson", CyclicPoisson: ", cyclic", FixedOrder: ""}
        return f"{kind}{options}{ways[type(sampler)]}"

    @property
    def code(self) -> str:
        """The arguments of `Plan`."""
        return f"noise={self.plan.noise}, sampling={self.plan.sampling}"

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.plan.total_steps

    @property
    def memory(self) -> int:
        """How many vectors of the size of the model a run keeps."""
        return self.plan.noise_memory

    @property
    def sigma(self) -> float:
        """The noise multiplier."""
        return self.plan.sigma

    @property
    def epsilon(self) -> float:
        """ε of the run."""
        return self.plan.epsilon_spent()

    @property
    def spread(self) -> NDArray[np.float64]:
        """The standard deviation of the noise in every iterate of SGD at learning rate 1."""
        workload = prefix_sum(self.steps, self.momentum)
        if isinstance(self.plan.noise, Correlated):
            variances = self.plan.noise_factor.variances(workload)
        else:
            variances = np.cumsum(np.square(workload))
        return np.asarray(self.plan.noise_std * np.sqrt(variances))

    @property
    def error(self) -> float:
        """The root of the mean square of `spread`."""
        return math.sqrt(float(np.square(self.spread).mean()))

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "name": self.name,
            "error": self.error,
            "noise_multiplier": self.sigma,
            "epsilon": self.epsilon,
            "vectors": self.memory,
            "noise": str(self.plan.noise),
            "sampling": str(self.plan.sampling),
        }


def compare(
    constants: Mapping[str, Any], epochs: int, momentum: float, dense: bool
) -> list[NoiseRow]:
    """Every noise with its sampler, at the same constants.

    Args:
        constants: population, batch size, δ, and ε; or σ of correlated noise in a fixed order,
            whose ε all others get too.
        epochs: how often every record takes part, on average where it is by chance.
        momentum: of the optimizer.
        dense: whether to find the best noise however many steps there are.

    Returns:
        Independent noise with Poisson sampling first.
    """
    common = {**constants, "adjacency": "zero-out"}
    order = FixedOrder(validation.positive_integer("epochs", epochs))
    if constants.get("epsilon") is None:
        known = Plan(**common, noise=Tree(), sampling=order)
        common = {**common, "noise_multiplier": None, "epsilon": known.epsilon_spent()}
    first = Plan(**common, noise=Gaussian(), sampling=order)
    steps = first.total_steps
    rows = [Plan(**common, steps=steps), first]
    rows += [Plan(**common, noise=noise, sampling=order) for noise in _noises(momentum)]
    if steps <= _DENSE_STEPS or dense:
        rows.append(Plan(**common, noise=Dense(momentum=momentum), sampling=order))
    for bands in _BANDS:
        if bands * first.batch_size <= constants["population"]:
            banded, cyclic = BandedToeplitz(bands, momentum=momentum), CyclicPoisson(bands)
            rows.append(Plan(**common, noise=banded, sampling=cyclic, steps=steps))
    return [NoiseRow(plan, momentum) for plan in rows]


def _noises(momentum: float) -> Iterator[Correlated]:
    yield Tree(honaker=False)
    yield Tree()
    for bands in _BANDS:
        yield BandedToeplitz(bands, momentum=momentum)
    for bands in _BANDS:
        yield BISR(bands, momentum=momentum)
    for bands in _BANDS:
        yield BandInvMF(bands, momentum=momentum)
    for buffers in _BUFFERS:
        yield BLT(buffers, momentum=momentum)
    yield SqrtToeplitz(momentum=momentum)


def recommended(rows: Sequence[NoiseRow], vectors: int) -> NoiseRow:
    """The noise of the least error within the memory; one of less memory that is as good."""
    allowed = [row for row in rows if row.memory <= vectors]
    least = min(row.error for row in allowed)
    close = [row for row in allowed if row.error <= _CLOSE * least]
    return min(close, key=lambda row: (row.memory, row.error))
