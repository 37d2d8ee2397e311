"""Bugs that were found in real libraries, each put into one part of a working private run.

A bug is a function that spoils a `Private`; it also gets the number of records. `BUGS` says which
checks must notice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import steppe
from steppe.audit import (
    AuditedRun,
    Result,
    control_flow,
    micro_batches,
    noise_independence,
    noise_law,
    non_finite_records,
    release,
    sampler_law,
    sensitivity,
)
from steppe.clipping import ClippedSum
from steppe.gradients import WeightSlots
from steppe.noise import Source
from steppe.private import BatchReader, Private
from steppe.step import PrivateStep
from steppe.utils.batches import count

Sabotage = Callable[[Private, int], None]
NO_RECORDS = torch.zeros(0, dtype=torch.long)


def engine(kind: type[ClippedSum]) -> Sabotage:
    """Give the run another engine."""

    def apply(private: Private, records: int) -> None:
        private.engine.__class__ = kind

    return apply


def place(**choices: Any) -> Sabotage:
    """Put another choice at one place of the plan, behind the plan's back."""

    def apply(private: Private, records: int) -> None:
        for name, choice in choices.items():
            object.__setattr__(private.plan, name, choice)
        plan = private.plan
        private._step.mechanism.noise = plan.noise
        draw = plan.sampling.begin(records, plan.population, plan.batch_size, private.groups)
        private._reader = BatchReader(
            draw, private._records, private._step.mechanism.source, plan.total_steps
        )

    return apply


def step(kind: type[PrivateStep]) -> Sabotage:
    """Give the run another step."""

    def apply(private: Private, records: int) -> None:
        private._step.__class__ = kind

    return apply


def iteration(kind: type[Private]) -> Sabotage:
    """Give the run other batches."""

    def apply(private: Private, records: int) -> None:
        private.__class__ = kind

    return apply


# --- place 4: the clip -----------------------------------------------------------------------


class _OwnFactors(ClippedSum):
    """An engine whose norms and factors can be spoiled one by one."""

    @torch.no_grad()
    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, *rest: Any, **more: Any
    ) -> Tensor:
        norms = self.norms(found)
        factors, bad = self.factors(norms)
        for leaf, slot in found:
            slot.add_(self.of(out, leaf), factors, bad)
        return norms

    def of(self, out: Tensor, leaf: Tensor) -> Tensor:
        start, end = self.weights.slices[id(leaf)]
        return out[start:end]

    def norms(self, found: WeightSlots) -> Tensor:
        return torch.stack([slot.squared_norms().float() for _, slot in found]).sum(0).sqrt()

    def factors(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        return self.clip.factors(norms), torch.nonzero(~torch.isfinite(norms)).flatten()


class _MeanClipped(_OwnFactors):
    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, *rest: Any, **more: Any
    ) -> Tensor:
        total = torch.zeros_like(out)
        norms = super().add_slots_(total, found, records)
        out += total * self.clip.factors((total / records).norm())
        return norms

    def factors(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        bad = torch.nonzero(~torch.isfinite(norms)).flatten()
        return torch.ones_like(norms).index_fill(0, bad, 0.0), bad


class _LayerSkipped(_OwnFactors):
    def norms(self, found: WeightSlots) -> Tensor:
        return super().norms(found[2:])


class _BiasSkipped(_OwnFactors):
    def norms(self, found: WeightSlots) -> Tensor:
        return super().norms([pair for pair in found if pair[0].ndim > 1])


class _PerLayer(_OwnFactors):
    @torch.no_grad()
    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, *rest: Any, **more: Any
    ) -> Tensor:
        for leaf, slot in found:
            slot.add_(self.of(out, leaf), *self.factors(self.norms([(leaf, slot)])))
        return self.norms(found)


class _ViewsClippedApart(ClippedSum):
    def captured(self, batch: Any, sequential: Any = None) -> Iterator[Any]:
        yield from super().captured(batch, sequential)
        yield from super().captured(batch, sequential)


class _NanPasses(_OwnFactors):
    def factors(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        return (self.clip.sensitivity / norms).clamp(max=1.0), NO_RECORDS


class _ZeroTimesNan(_OwnFactors):
    def factors(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        return self.clip.factors(norms), NO_RECORDS


class _NanStops(ClippedSum):
    def add_slots_(self, *arguments: Any, **more: Any) -> Tensor:
        norms = super().add_slots_(*arguments, **more)
        if not torch.isfinite(norms).all():
            raise FloatingPointError
        return norms


class _LastPieceOnly(ClippedSum):
    def captured(self, batch: Any, sequential: Any = None) -> Iterator[Any]:
        yield from list(super().captured(batch, sequential))[-1:]


class _ClipsPieces(_OwnFactors):
    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, *rest: Any, **more: Any
    ) -> Tensor:
        total = torch.zeros_like(out)
        norms = super().add_slots_(total, found, records)
        out += total * self.clip.factors(total.norm())
        return norms


def _bound_ignored(private: Private, records: int) -> None:
    private.engine.clipper = steppe.Flat(1.0).begin(private.engine.parameters)


# --- place 5: the noise ----------------------------------------------------------------------


class _Short(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        return super().start_(buffer, std * 0.95, source)


class _OverBatch(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        return super().start_(buffer, std / 8, source)


class _Uniform(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        values = torch.from_numpy(source.uniform(buffer.numel()) - 0.5)
        return buffer.copy_(values * std * 12**0.5)


class _SeedReset(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        return super().start_(buffer, std, steppe.SeededSource(7))


class _OneScalar(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        return buffer.fill_(float(super().start_(torch.empty(1), std, source)))


class _SameForEveryHalf(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        half = buffer.numel() // 2
        super().start_(buffer, std, source)
        buffer[half : 2 * half] = buffer[:half]
        return buffer


class _GlobalGenerator(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        return buffer.normal_(std=std)


class _HalfPrecision(steppe.Gaussian):
    def start_(self, buffer: Tensor, std: float, source: Source) -> Tensor:
        return buffer.copy_(super().start_(buffer, std, source).bfloat16())


class _KeepsKeyAfterFork(steppe.SecureSource):
    def _before_draw(self) -> None:
        pass


def _shared_key(private: Private, records: int) -> None:
    private._step.mechanism.source.__class__ = _KeepsKeyAfterFork


# --- the division ----------------------------------------------------------------------------


class _OverActualBatch(PrivateStep):
    def take(self, parts: Any) -> None:
        self.mechanism.divisor.fill_(max(1, sum(count(part) for part in parts)))
        super().take(parts)


def _over_data_size(private: Private, records: int) -> None:
    """int(rate · len(data)), as a well-known library divides."""
    private._step.mechanism.divisor.fill_(max(1, int(private.plan.rate * records)))


class _EmptySkipsNoise(PrivateStep):
    def take(self, parts: Any) -> None:
        if sum(count(part) for part in parts):
            super().take(parts)
        else:
            self._charge()
            self.mechanism.hand_over(self.optimizer, torch.zeros(self.engine.width))


class _SumOverNoise(ClippedSum):
    """The sum of several records takes the place of the noise it should be added to."""

    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, *rest: Any, **more: Any
    ) -> Tensor:
        if records > 1:
            out.zero_()
        return super().add_slots_(out, found, records, *rest, **more)


# --- place 1: the sample ---------------------------------------------------------------------


class _FixedSize(steppe.Poisson):
    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        size = max(1, round(population * threshold / 2**64))
        return torch.from_numpy(np.argsort(source.uniform(population))[:size].copy())


class _OverSampled(steppe.Poisson):
    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        return super().draw(population, min(2**64, threshold * 11 // 10), source)


class _SameCoins(steppe.Poisson):
    """Every run tosses the coins of the same seed: ranks that agree on one."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        coins = source.__dict__.setdefault("coins", steppe.SeededSource(3))
        return super().draw(population, threshold, coins)


class _CoinsOnce(steppe.Poisson):
    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        return super().draw(population, threshold, steppe.SeededSource(3))


class _Blocks(steppe.Poisson):
    """Neighbouring records share a coin."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        pairs = super().draw(population // 2, threshold, source)
        return torch.stack([2 * pairs, 2 * pairs + 1], 1).flatten()


class _Shuffled(steppe.Poisson):
    """Epochs without replacement."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        size = max(1, round(population * threshold / 2**64))
        left = source.__dict__.setdefault("left", [])
        if len(left) < size:
            left.extend(np.argsort(source.uniform(population)).tolist())
        taken, left[:] = left[:size], left[size:]
        return torch.tensor(taken)


class _Twice(steppe.Poisson):
    """Every participant comes twice, and says twice as much."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        return super().draw(population, threshold, source).repeat_interleave(2)


class _DoubleBuffer(steppe.Poisson):
    """Two batches, and both of them again."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        given = source.__dict__.setdefault("given", [])
        new = len(given) % 4 < 2
        given.append(super().draw(population, threshold, source) if new else given[-2])
        return given[-1]


class _UnequalRates(steppe.Poisson):
    """Every other record tosses a coin of 1.2 times the rate, the others of 0.8 times."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        often, seldom = (
            super(_UnequalRates, self).draw(population // 2, int(factor * threshold), source)
            for factor in (1.2, 0.8)
        )
        return torch.cat([2 * often, 2 * seldom + 1])


class _Twins(steppe.Poisson):
    """One pair of records shares a coin."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        others = super().draw(population, threshold, source)
        others = others[others != 1]
        return torch.cat([others, torch.ones(int((others == 0).sum()), dtype=torch.long)])


class _SizesTwice(steppe.Poisson):
    """Every second batch is as large as the one before, with other records."""

    def draw(self, population: int, threshold: int, source: Any) -> Tensor:
        sizes = source.__dict__.setdefault("sizes", [])
        if len(sizes) % 2 == 0:
            drawn = super().draw(population, threshold, source)
            sizes.append(len(drawn))
            return drawn
        sizes.append(sizes[-1])
        return torch.from_numpy(np.argsort(source.uniform(population))[: sizes[-1]])


class _EmptyLeftOut(Private):
    def __iter__(self) -> Iterator[Any]:
        for step in range(self.plan.total_steps):
            batch = self._reader.read(step)
            if (size := count(batch)) > 0:
                self._handed_out = (self.steps_done, size)
                yield batch


Check = Callable[[AuditedRun], Result | list[Result]]
SUM: list[Check] = [sensitivity, release]
NAN: list[Check] = [sensitivity, non_finite_records, control_flow, release]
NOISE: list[Check] = [functools.partial(noise_law, draws=60_000)]
REPEATS: list[Check] = [noise_independence]
SAMPLE: list[Check] = [sampler_law]

BUGS: dict[str, tuple[Sabotage, list[Check]]] = {
    "the batch mean is clipped": (engine(_MeanClipped), [sensitivity]),
    "the norm skips a layer": (engine(_LayerSkipped), SUM),
    "the norm skips biases": (engine(_BiasSkipped), SUM),
    "every layer has its own bound": (engine(_PerLayer), SUM),
    "views are clipped one by one": (engine(_ViewsClippedApart), SUM),
    "the bound of the plan is ignored": (_bound_ignored, SUM),
    "NaN passes the clip": (engine(_NanPasses), NAN),
    "zero times NaN": (engine(_ZeroTimesNan), NAN),
    "NaN stops the run": (engine(_NanStops), NAN),
    "only the last piece counts": (engine(_LastPieceOnly), [micro_batches]),
    "pieces are clipped, not records": (engine(_ClipsPieces), [micro_batches]),
    "division by the actual batch": (step(_OverActualBatch), [control_flow, *NOISE]),
    "division by int(rate * len(data))": (_over_data_size, [control_flow, release]),
    "noise divided by the batch": (place(noise=_OverBatch()), NOISE),
    "5 % too little noise": (place(noise=_Short()), NOISE),
    "uniform noise of the same variance": (place(noise=_Uniform()), NOISE),
    "seed reset in every step": (place(noise=_SeedReset()), REPEATS),
    "one number is the noise of all weights": (place(noise=_OneScalar()), REPEATS),
    "two layers share their noise": (place(noise=_SameForEveryHalf()), REPEATS),
    "noise from the global generator": (place(noise=_GlobalGenerator()), REPEATS),
    "noise in half precision": (place(noise=_HalfPrecision()), REPEATS),
    "a fork shares the key": (_shared_key, REPEATS),
    "an empty batch gets no noise": (step(_EmptySkipsNoise), [control_flow, release, *NOISE]),
    "several records get no noise": (engine(_SumOverNoise), [control_flow]),
    "batches of fixed size": (place(sampling=_FixedSize()), SAMPLE),
    "10 % too many participants": (place(sampling=_OverSampled()), SAMPLE),
    "two runs toss the same coins": (place(sampling=_SameCoins()), SAMPLE),
    "every step tosses the same coins": (place(sampling=_CoinsOnce()), SAMPLE),
    "two records share a coin": (place(sampling=_Blocks()), SAMPLE),
    "epochs without replacement": (place(sampling=_Shuffled()), SAMPLE),
    "every participant comes twice": (place(sampling=_Twice()), SAMPLE),
    "batches come again two steps later": (place(sampling=_DoubleBuffer()), SAMPLE),
    "some records have a higher rate": (place(sampling=_UnequalRates()), SAMPLE),
    "one pair of records shares a coin": (place(sampling=_Twins()), SAMPLE),
    "two batches share their size": (place(sampling=_SizesTwice()), SAMPLE),
    "empty batches are left out": (iteration(_EmptyLeftOut), SAMPLE),
}
