"""The audited run, and data sets that control its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import Clipper
from steppe.errors import MisuseError
from steppe.plan import Plan
from steppe.private import Private
from steppe.randomness import SecureSource, Source
from steppe.records import Records, SubsetRecords, as_records
from steppe.utils import validation

Build = Callable[[Plan, Records, Source], Private]


@dataclass(frozen=True)
class AuditedRun:
    """A way to make private runs, with a plan and some records to make them from.

    Args:
        build: makes a new `Private` from a plan, records and a source of randomness. Every call
            must start from the same weights.
        plan: the public constants, with a declared population.
        data: records as for `make_private`; they may be synthetic.

    Examples:
        >>> import copy, steppe
        >>> from torch import nn
        >>> model = nn.Linear(3, 2)
        >>> def build(plan, data, source):
        ...     fresh = copy.deepcopy(model)
        ...     optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
        ...     loss = nn.functional.cross_entropy
        ...     return steppe.make_private(fresh, optimizer, data, plan, loss=loss, source=source)
        >>> data = (torch.randn(20, 3), torch.randint(2, (20,)))
        >>> plan = Plan(delta=1e-3, noise_multiplier=1.0, population=20, batch_size=5, steps=3)
        >>> AuditedRun(build, plan, data).private().steps_done
        0
    """

    build: Build
    plan: Plan
    data: Any

    def __post_init__(self) -> None:
        if self.plan.population is None:
            raise validation.missing(
                "plan.population",
                "declare it in the plan",
                "must be declared, or the rate itself depends on the records",
            )
        # Checks change the number of steps, but the noise must stay the same.
        if self.plan.epsilon is not None:
            object.__setattr__(self, "plan", self.plan.calibrate())

    @cached_property
    def records(self) -> Records:
        """The data, numbered from 0."""
        return as_records(self.data)

    def first(self, count: int) -> Records:
        """The first records, at most `count` of them."""
        return SubsetRecords(self.records, torch.arange(min(count, len(self.records))))

    def private(
        self,
        data: Records | None = None,
        source: Source | None = None,
        **constants: Any,
    ) -> Private:
        """A new run.

        Args:
            data: records in place of the subject's own.
            source: where randomness comes from; a new secure source unless given.
            **constants: fields of the plan to replace.
        """
        if "steps" in constants:
            constants["epochs"] = None
        plan = replace(self.plan, **constants)
        data = self.records if data is None else data
        private = self.build(plan, data, source or SecureSource())
        private.mechanism.on_norms = None  # a message about records that the audit made is no use
        _record_releases(private)
        return private


class EmptyBatches(Records):
    """A data set whose batches are all empty."""

    def __init__(self, base: Records) -> None:
        self._base = base

    def __len__(self) -> int:
        return len(self._base)

    def batch(self, rows: Tensor) -> Any:
        return self._base.batch(rows[:0])


class FixedBatches(Records):
    """A data set that yields given batches, whatever is drawn.

    No random numbers are drawn for sampling, so two runs with the same seed get the same noise.

    Args:
        base: where the form of a batch comes from.
        length: the number of records that it reports.
        script: the batches, one for each step.
    """

    def __init__(self, base: Records, length: int, script: Sequence[Any]) -> None:
        self._base, self._length, self._script = base, length, script

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: Tensor) -> Any:
        return self._base.batch(rows)

    def stream(self, batches: Iterable[Tensor]) -> Iterator[Any]:
        del batches
        return iter(self._script)


class RecordedRows(Records):
    """A data set that records which rows each of its batches contains."""

    def __init__(self, base: Records) -> None:
        self._base = base
        self._given: dict[int, tuple[Any, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._base)

    def batch(self, rows: Tensor) -> Any:
        batch = self._base.batch(rows)
        self._given[id(batch)] = (batch, rows)  # holding the batch keeps its id its own
        return batch

    def rows_of(self, batch: Any) -> Tensor:
        """The rows of a batch of this data set."""
        return self._given[id(batch)][1]


def _record_releases(private: Private) -> None:
    """Record what the mechanism releases. The code path is the same as without an audit."""
    clipper, mechanism = _RecordingClipper(private.engine.clipper), private.mechanism
    private.engine.clipper, hand_over = clipper, mechanism.hand_over

    def recorded(optimizer: Optimizer, gradient: Tensor | None) -> None:
        if gradient is not None and clipper.releases_gradients:  # which nobody decodes
            clipper.answer = clipper.gradient = gradient.double().clone()
        hand_over(optimizer, gradient)

    mechanism.hand_over = recorded  # type: ignore[method-assign]


class _RecordingClipper:
    """A clipper that records the last vector it decoded, and the result."""

    def __init__(self, clipper: Clipper) -> None:
        self._clipper = clipper
        self.answer = self.gradient = torch.zeros(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clipper, name)

    def decode(self, answer: Tensor) -> Tensor:
        self.answer = answer.double().clone()
        gradient = self._clipper.decode(answer)
        self.gradient = gradient.double().clone()
        return gradient


def released(private: Private, padding: bool = True) -> Tensor:
    """What the last step released, flat and in float64.

    That is the private gradient as the optimizer saw it, where clips hand the noised mean on as it
    is; before it was rounded, if weights are of half precision. Others decode it: then it is the
    vector before, and the optimizer must have seen exactly what was decoded from it.

    Args:
        private: the run.
        padding: with the rows of embedding tables that stand for padding, where they are seen.
            They are zero for everybody and need no noise.
    """
    engine, clipper = private.engine, private.engine.clipper
    seen = {name: p.grad for name, p in engine.parameters.items() if p.grad is not None}
    # A broken step may have decoded nothing.
    recorder = (
        clipper if isinstance(clipper, _RecordingClipper) and len(clipper.gradient) > 0 else None
    )
    if recorder is not None and not torch.equal(recorder.answer, recorder.gradient):
        for name, gradient in seen.items():
            decoded = engine.part_of(recorder.gradient, name).to(gradient.dtype)
            # Rows that stand for padding are zero for everybody.
            if bool(((gradient != decoded) & (gradient != 0)).any()):
                raise MisuseError(
                    f"The gradient of {name!r} was changed before the optimizer used it; it must "
                    "be the one decoded from the released vector. Remove what changes it."
                )
        return recorder.answer
    left_out = {} if padding else private.padding_rows
    pieces = [torch.zeros(0, dtype=torch.float64)]
    for name, gradient in seen.items():
        piece = gradient.double()
        if recorder is not None:
            exact = engine.part_of(recorder.gradient, name)
            piece = torch.where(exact.to(gradient.dtype) == gradient, exact, piece)
        if (row := left_out.get(name)) is not None:
            piece = torch.cat((piece[:row], piece[row + 1 :]))
        pieces.append(piece.flatten())
    return torch.cat(pieces)
