"""Place 5, noise that is correlated over the steps: the choice, and its run.

Published weights are sums of noised gradients. Noise that a later step takes back in part adds up
to less there than independent noise, at the same cost: the whole run is one Gaussian answer about
C G, with G the clipped sums, see `steppe.noise.factor`. Denisov et al., Improved Differential
Privacy for SGD via Optimal Private Linear Operators on Adaptive Streams, 2022.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch

from steppe.accounting import Participation
from steppe.errors import MisuseError
from steppe.noise.factor import Factor
from steppe.noise.streams import Stream
from steppe.noise.workload import Matrix, Vector, check_momentum, prefix_sum
from steppe.randomness import Source
from steppe.utils.validation import fail, positive, positive_integer


@dataclass(frozen=True)
class Correlated(ABC):
    """A noise that is correlated over the steps of a run; a subclass says how.

    Args:
        momentum: β of the optimizer, for noise that suits its iterates. It changes how well the
            noise works, not what is accounted.

    Guarantees:
        With `sensitivity(steps, participation)` = s, fresh noise of standard deviation σ s C per
        coordinate, and records that take part as `participation` says with clipped gradients of
        norm at most C, the whole run is one Gaussian answer of noise multiplier σ. This holds also
        where a gradient depends on all earlier answers, because C is lower-triangular.
    """

    momentum: float = field(default=0.0, kw_only=True)

    grid: ClassVar[bool] = False  # sums are not rounded

    def __post_init__(self) -> None:
        name = f"{type(self).__name__}.momentum"
        object.__setattr__(self, "momentum", check_momentum(name, self.momentum))

    @abstractmethod
    def make(self, steps: int, participation: Participation) -> Factor:
        """Compute the matrices for a number of steps and the turns of a record."""

    def reach(self, steps: int) -> int:
        """The number of diagonals of C that are not zero, the main one included."""
        return steps

    def check_steps(self, steps: int) -> None:
        """Refuse a number of steps that the noise cannot be made for."""
        positive_integer("steps", steps)

    def workload_of(self, steps: int) -> Vector | Matrix:
        """What the noise is made for: the iterates of SGD with this momentum."""
        return prefix_sum(steps, self.momentum)

    def factor(self, steps: int, participation: Participation) -> Factor:
        """The matrices, kept by the parameters that they depend on."""
        return _factor(self, steps, participation.within(steps))

    def sensitivity(self, steps: int, participation: Participation) -> float:
        """The sensitivity s of C for unit clips."""
        return math.sqrt(self.growth(steps, participation)[-1])

    def growth(self, steps: int, participation: Participation) -> tuple[float, ...]:
        """The squared sensitivity of the first 1, 2, … steps, or a bound; see `Factor.growth`."""
        return _growth(self, steps, participation.within(steps))

    def sizes(self, steps: int, participation: Participation) -> tuple[float, ...]:
        """The standard deviation of every step's noise, for fresh noise of unit size."""
        return _sizes(self, steps, participation.within(steps))

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        """The schedule: fresh noise of one size in every step."""
        return ((steps, 1.0),)

    def begin(self, steps: int, participation: Participation, queries: int = 1) -> CorrelatedRun:
        """The noise of one run.

        Args:
            steps: of the run.
            participation: in which steps a record can take part.
            queries: how often a step queries its batch; each has a stream of its own.
        """
        factor = self.factor(steps, participation)
        return CorrelatedRun(factor, steps, queries)


class CorrelatedRun:
    """A correlated noise at work in one run.

    Args:
        factor: the matrices.
        steps: of the run.
        queries: how often a step queries its batch; each has a stream of its own.

    Guarantees:
        Every query gets the next row of M Z. The noise of a step that failed is made up for with
        fresh noise that nobody sees, so rows and steps stay aligned and a record's turns keep their
        distance. No row is given out twice, and asking for an earlier one is an error. A state is
        continued with the same matrices only: noise made with two has the sensitivity of neither.
        What `state()` returns is SECRET until the run is over.
    """

    grid = False

    def __init__(self, factor: Factor, steps: int, queries: int) -> None:
        self._factor, self._steps = factor, steps
        self._streams: list[Stream] = [factor.stream() for _ in range(queries)]
        self._std: float | None = None
        self._next = (0, 0)

    @cached_property
    def _matrices(self) -> str:
        return self._factor.digest()

    def at(self, step: int, query: int) -> None:
        """Say which query the next noise is for, both counted from 0."""
        self._next = (step, query)

    def start_(self, buffer: torch.Tensor, std: float, source: Source) -> torch.Tensor:
        """Overwrite the accumulator with the noise of this query.

        Args:
            buffer: flat, float32 or float64; its content is lost.
            std: standard deviation of fresh noise, the same in every step.
            source: where it comes from.
        """
        std = positive("std", std)
        if self._std not in (None, std):
            rule = f"must stay {self._std!r} during a run, because earlier noise is taken back"
            raise fail("std", std, rule, "begin another run")
        step, query = self._next
        if not 0 <= query < len(self._streams):
            raise fail("query", query, f"must be below {len(self._streams)}, the queries of a step")
        stream = self._streams[query]
        if not stream.step <= step < self._steps:
            raise MisuseError(
                f"step={step}: must be from {stream.step}, the steps that have had their noise, to "
                f"{self._steps - 1}, the last of the run; noise is never given out twice."
            )
        self._std = std

        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            return source.fill_normal_(tensor, std)

        while stream.step <= step:
            stream.next_(buffer, fresh)
        if step + 1 == self._steps:
            stream.kept = {}  # no later step contains this noise
        return buffer

    def finish_(
        self, buffer: torch.Tensor, std: float, sensitivity: float, source: Source
    ) -> torch.Tensor:
        """The buffer, which started as the noise."""
        del std, sensitivity, source
        return buffer

    def state(self) -> dict[str, Any]:
        """What later noise depends on. SECRET: with it, noise can be subtracted."""
        return {
            "std": self._std,
            "matrices": self._matrices,
            "streams": [{"step": stream.step, "kept": stream.state()} for stream in self._streams],
        }

    def load(self, state: Mapping[str, Any], step: int, like: torch.Tensor) -> None:
        """Continue after a step.

        Args:
            state: what `state` returned after that step, and after no other.
            step: how many steps are charged.
            like: a vector of the run's noise, for length, type and device.
        """
        if step == self._steps:  # the run is over, and nothing more is asked for
            for stream in self._streams:
                stream.step, stream.kept = step, {}
            return
        streams = state.get("streams")
        if not isinstance(streams, list) or len(streams) != len(self._streams):
            rule = f"must hold the noise of {len(self._streams)} streams"
            raise fail("state['noise']", type(streams).__name__, rule, "load it with the same plan")
        if state.get("matrices") != self._matrices:
            raise fail(
                "state['noise']['matrices']",
                state.get("matrices"),
                f"must be {self._matrices}, the digest of this run's matrices; another machine or "
                "version may find other numbers for the same plan",
                "resume where the run began, or begin a new run, whose cost the ledger adds",
            )
        for stream, found in zip(self._streams, streams, strict=True):
            if found["step"] != step:
                raise fail(
                    "state['noise']",
                    f"after step {found['step']}",
                    f"must be that after step {step}, the steps charged: what they released "
                    "contains noise that is lost, and other noise in its place would cost more "
                    "than the plan says",
                    "begin a new run, whose cost the ledger adds to that of this one",
                )
            stream.load(step, found["kept"], like)
        self._std = None if state["std"] is None else positive("std", state["std"])


@lru_cache(maxsize=32)
def _factor(noise: Correlated, steps: int, participation: Participation) -> Factor:
    return noise.make(steps, participation)


@lru_cache(maxsize=64)
def _growth(noise: Correlated, steps: int, participation: Participation) -> tuple[float, ...]:
    return tuple(noise.factor(steps, participation).growth(participation).tolist())


@lru_cache(maxsize=64)
def _sizes(noise: Correlated, steps: int, participation: Participation) -> tuple[float, ...]:
    return tuple(noise.factor(steps, participation).sizes().tolist())
