"""The mechanism: (Σᵢ clipped gradientᵢ + noise) / expected batch.

The one place where noise is added. `make_private`, the trainer and `steppe.compat` all get their
gradients here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.gradients import PlainSequential, WeightSlots
from steppe.noise import NoiseRun
from steppe.randomness import Source


class Mechanism:
    """Makes private gradients with one engine and one noise.

    Args:
        engine: sums clipped gradients.
        noise: hides the sum.
        sensitivity: the largest change of the sum by one record, in l2 norm.
        divisor: the expected batch, a public constant.
        source: where the noise comes from.
        padding: weight name -> padding row. Its gradient is zero for all data, so it gets no noise
            and does not change.

    Attributes:
        dtype: of the sums: float64 for float64 weights and for noise on a grid, which needs an
            exact sum; float32 otherwise.
        on_norms: if set, called with the norms of the gradients of every part. It must not change
            what a query does.

    Guarantees:
        A query releases (clipped sum + noise of the given size) / divisor and nothing else. Every
        answer has its own memory.
    """

    def __init__(
        self,
        engine: ClippedSum,
        noise: NoiseRun,
        *,
        sensitivity: float,
        divisor: float,
        source: Source,
        padding: Mapping[str, int] | None = None,
    ) -> None:
        self.engine, self.noise, self.source = engine, noise, source
        self.sensitivity = sensitivity
        double = noise.grid or all(p.dtype == torch.float64 for p in engine.parameters.values())
        self.dtype = torch.float64 if double else torch.float32
        # A tensor, because torch would convert a Python float in every step.
        self.divisor = torch.tensor(divisor, dtype=self.dtype, device="cpu")
        self._padding = dict(padding or {})
        self.on_norms: Callable[[Tensor], None] | None = None

    def query(self, noise_std: float, step: int = 0, number: int = 0) -> Query:
        """Begin one query of a drawn batch at the current weights.

        Args:
            noise_std: standard deviation of the fresh noise on the sum.
            step: of the run, counted from 0, for noise that is correlated over the steps.
            number: of the query in its step, counted from 0.
        """
        self.engine.prepare()
        self.noise.at(step, number)
        return Query(self, noise_std)

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """A block that restores the state of the clip if it ends with an error."""
        before = self.engine.clipper.state()
        try:
            yield
        except BaseException:
            self.engine.clipper.load(before)
            raise

    def hand_over(self, optimizer: Optimizer, gradient: Tensor | None) -> None:
        """Set `.grad` of every trained weight to its part of a private gradient.

        Args:
            optimizer: of these weights. `.grad` of all its other weights becomes None.
            gradient: a flat vector; None clears all gradients.
        """
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        if gradient is not None:
            for parameter, part in self.engine.weights.split(gradient):
                if parameter.requires_grad:
                    parameter.grad = part.to(parameter.dtype)

    def without_padding(self, gradient: Tensor) -> Tensor:
        """The gradient with zeros in padding rows."""
        for name, row in self._padding.items():
            self.engine.part_of(gradient, name)[row] = 0.0
        return gradient


class Query:
    """One noised sum over a drawn batch, which is added in parts. Made by `Mechanism.query`."""

    def __init__(self, mechanism: Mechanism, noise_std: float) -> None:
        self._mechanism, self._noise_std = mechanism, noise_std
        self._buffer: Tensor | None = None

    def add(self, part: Any, sequential: PlainSequential | None = None) -> None:
        """Add the clipped gradients of a part of the batch.

        Args:
            part: some of the drawn records. All parts together contain each record once.
            sequential: what `engine.sequential` returned for this batch.
        """
        with torch.no_grad():
            for found, records, padding in self._mechanism.engine.captured(part, sequential):
                self.add_captured(found, records, padding=padding)

    def add_captured(
        self, found: WeightSlots, records: int, scale: float = 1.0, padding: int = 0
    ) -> None:
        """Add per-example gradients that were captured already; see `ClippedSum.add_slots_`."""
        mechanism = self._mechanism
        norms = mechanism.engine.add_slots_(self._sum(), found, records, scale, padding)
        if mechanism.on_norms is not None:
            mechanism.on_norms(norms)

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The answer: a flat private gradient of the mean loss."""
        mechanism = self._mechanism
        noised = mechanism.noise.finish_(
            self._sum(), self._noise_std, mechanism.sensitivity, mechanism.source
        )
        gradient = mechanism.engine.decode(noised.div_(mechanism.divisor))
        return mechanism.without_padding(gradient)

    def _sum(self) -> Tensor:
        """The sum so far. It starts as the noise, to which the clipped gradients are added.

        It is allocated after the first pass through the model, so that it does not take memory
        beside the activations. Its memory is new, because earlier answers may be in use as
        gradients.
        """
        if self._buffer is None:
            mechanism, engine = self._mechanism, self._mechanism.engine
            memory = torch.empty(engine.width, dtype=mechanism.dtype, device=engine.device)
            self._buffer = mechanism.noise.start_(memory, self._noise_std, mechanism.source)
        return self._buffer
