"""The uniform average of the past k updates (UPA)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from steppe.averaging.average import Average
from steppe.averaging.ring_buffer import Ring
from steppe.averaging.running import Accumulators
from steppe.utils.validation import fail, positive_integer


class Window(Average):
    """The mean of the past k updates (UPA, seed 001), of all of them while there are fewer.

    An exact window that moves with every update has to remember k vectors. Three ways out:

    * only the end of the run matters: `SWA(model, warmup=T - k + 1)` needs one vector;
    * `block=b` keeps k/b means of b updates each, plus one unfinished: exactly the past k at every
      multiple of b, and between them the past k plus the unfinished block (`covers` tells);
    * `folder` moves the ring to a scratch file and `dtype` halves it. A stored number has a
      relative error of at most `rounding`, so an entry of the average is off by at most `rounding`
      times the mean size of that entry over the window. float16 has fewer digits for numbers below
      6e-5: there the error is at most 3e-8, whatever the number.

    An update costs one pass over the weights whatever k is. The mean is taken when it is read, in
    float64, in one pass for each stored vector: no rounding builds up over a run.

    Args:
        model: the model to average.
        k: how many updates.
        block: updates in a block; k must be a multiple of it.
        folder: where the scratch file of a ring on disk lives; None keeps it in memory.
        dtype: how the ring is stored; None is the accumulator's dtype, which is exact.
        average_buffers: names of floating-point buffers to average; all others are copied.

    Guarantees:
        Post-processing: no privacy cost.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = Window(model, k=3)
        >>> for value in range(10):
        ...     _ = torch.nn.init.constant_(model.weight, value)
        ...     average.update(model)
        >>> average.weights()["weight"].item()
        8.0
    """

    def __init__(
        self,
        model: nn.Module,
        k: int,
        block: int = 1,
        folder: str | Path | None = None,
        dtype: torch.dtype | None = None,
        average_buffers: Sequence[str] = (),
    ) -> None:
        super().__init__(model, average_buffers)
        self.k = positive_integer("k", k)
        self.block = positive_integer("block", block)
        if self.k % self.block:
            raise fail("block", block, f"must divide k={k}", "choose a divisor of k")
        specs = list(self.layout.averaged.values())
        length = sum(spec.numel() for spec in specs)
        exact = max((spec.dtype for spec in specs), key=lambda dtype: dtype.itemsize)
        where = None if folder is None else Path(folder)
        self._ring = Ring(self.k // self.block, length, dtype or exact, where, specs[0].device)
        # The mean of the unfinished block; a block of one never waits.
        self._unfinished = Accumulators(self.layout, 1) if self.block > 1 else None

    @property
    def rounding(self) -> float:
        """The largest relative error of a stored number."""
        return self._ring.rounding

    @property
    def covers(self) -> int:
        """How many updates the average contains."""
        return self._complete() * self.block + self.updates % self.block

    def _complete(self) -> int:
        return min(self.updates, self.k) // self.block

    def _take(self, current: list[Tensor]) -> None:
        slot = self.updates // self.block % (self.k // self.block)
        if self._unfinished is None:
            self._ring.write(slot, current)
            return
        place = self.updates % self.block + 1
        self._unfinished.move(current, [1 / place])
        if place == self.block:
            self._ring.write(slot, self._unfinished.row(0))

    @torch.no_grad()
    def _averaged(self) -> list[Tensor]:
        self._require_started()
        specs = list(self.layout.averaged.values())
        parts = self._ring.mean(self._complete()).split([spec.numel() for spec in specs])
        means = [p.view(s.shape).to(s.device) for p, s in zip(parts, specs, strict=True)]
        waiting = self.updates % self.block
        if self._unfinished is not None and waiting:
            unfinished = [tensor.double() for tensor in self._unfinished.row(0)]
            torch._foreach_lerp_(means, unfinished, waiting / self.covers)
        return [mean.to(spec.dtype) for mean, spec in zip(means, specs, strict=True)]

    def settings(self) -> dict[str, float]:
        return {"k": self.k, "block": self.block}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"ring": self._ring.rows}
        if self._unfinished is not None:
            names = [f"unfinished.{name}" for name in self.layout.averaged]
            tensors |= zip(names, self._unfinished.row(0), strict=True)
        return tensors
