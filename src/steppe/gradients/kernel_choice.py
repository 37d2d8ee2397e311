"""Chooses between several algorithms for a layer by a short measurement.

Every candidate gives the same gradients; they differ in time and memory by factors that depend on
the layer, the shape and the machine. A count of multiplications rules out the slowest, the first
batch times the rest, and the choice is kept for that shape. It can be stored and pinned, which
makes runs reproducible to the last bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from steppe.gradients.slots.slot import NO_RECORDS, Slot
from steppe.utils import validation

# Candidates that need this many times the multiplications of the best are not timed.
_HOPELESS = 6.0
# A candidate that takes more memory than the smallest must be faster by this factor. In the
# measurement its data is still in the cache; in a step the rest of the backward pass comes in
# between. One that takes this many bytes more must be faster still, because it determines peak
# memory.
_LEAN, _MUCH, _MUCH_LEANER = 0.85, 32e6, 0.75
# Candidates are timed in turn, so that a disturbance affects all of them: the fewest turns, the
# seconds up to which there are more, and the most turns.
_TURNS, _ENOUGH, _MOST = 5, 0.05, 10


@dataclass(frozen=True)
class Candidate:
    """One way to compute a slot.

    Args:
        make: builds the slot.
        flops: multiplications for norms and weighted sum together, per batch.
        workspace: its peak memory in bytes, in addition to input and output gradient.
    """

    make: Callable[[], Slot]
    flops: float
    workspace: float = 0.0


class Kernels:
    """Remembers the algorithm for each layer shape.

    Args:
        pinned: choices made beforehand, in the form of `chosen` of an earlier run.
        measure: time the candidates for every new shape; False relies on the count of
            multiplications.
        workspace: candidates that need more bytes are left out if another fits.

    Attributes:
        chosen: key of the shape -> name of the candidate.

    Examples:
        >>> Kernels(pinned={"linear 4x3 T=2": "gram"}).chosen
        {'linear 4x3 T=2': 'gram'}
    """

    def __init__(
        self,
        pinned: Mapping[str, str] | None = None,
        measure: bool = True,
        workspace: int = 128 * 2**20,
    ) -> None:
        self.chosen: dict[str, str] = dict(pinned or {})
        self.measure = measure
        self.workspace = validation.positive_integer("workspace", workspace)

    def pick(
        self, key: str, candidates: Mapping[str, Candidate], numel: int, dtype: torch.dtype
    ) -> Slot:
        """Return the slot of the chosen candidate; choose first if the key is new.

        Args:
            key: names layer and shape, without the number of records.
            candidates: by name.
            numel: the size of the weight.
            dtype: of the accumulated sums.
        """
        name = self.chosen.get(key)
        if name is None:
            name = self.chosen[key] = self._choose(candidates, numel, dtype)
        elif name not in candidates:
            listed = ", ".join(sorted(candidates))
            raise validation.fail(f"kernels[{key!r}]", name, f"must be one of {listed}", "unpin it")
        return candidates[name].make()

    def _choose(self, candidates: Mapping[str, Candidate], numel: int, dtype: torch.dtype) -> str:
        fitting = {n: c for n, c in candidates.items() if c.workspace <= self.workspace}
        if not fitting:
            least = min(candidates, key=lambda n: candidates[n].workspace)
            fitting = {least: candidates[least]}
        best = min(c.flops for c in fitting.values())
        close = {n: c for n, c in fitting.items() if c.flops <= _HOPELESS * best}
        if len(close) == 1 or not self.measure:
            return min(close, key=lambda n: close[n].flops)
        return _fastest(close, numel, dtype)


def _fastest(candidates: Mapping[str, Candidate], numel: int, dtype: torch.dtype) -> str:
    """The name of the fastest candidate; if it is unclear, of the one with the least memory."""
    best = dict.fromkeys(candidates, math.inf)
    spent = 0.0
    for turn in range(_MOST):
        if turn >= _TURNS and spent >= _ENOUGH:
            break
        for name, candidate in candidates.items():
            seconds = _seconds(candidate, numel, dtype)
            best[name] = min(best[name], seconds)
            spent += seconds
    least = min(candidate.workspace for candidate in candidates.values())

    def weighted(name: str) -> float:
        more = candidates[name].workspace - least
        if more == 0:
            return best[name]
        return best[name] / (_MUCH_LEANER if more > _MUCH else _LEAN)

    return min(candidates, key=weighted)


def _seconds(candidate: Candidate, numel: int, dtype: torch.dtype) -> float:
    """The duration of building the slot, norms and weighted sum.

    Measured by this thread's clock, which stops while other programs use the processor.
    """
    begin = time.thread_time()
    slot = candidate.make()
    factors = torch.ones_like(slot.squared_norms(), dtype=dtype)
    slot.add_(factors.new_zeros(numel), factors, NO_RECORDS)
    return time.thread_time() - begin
