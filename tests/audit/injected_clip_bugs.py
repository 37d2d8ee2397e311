"""Bugs of adaptive clips and of padding, each in a working run, and the checks that must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from audit_subjects import CLIP, gep, mlp, per_layer, quantile
from torch import Tensor

import steppe
from steppe.audit import (
    AuditedRun,
    Result,
    control_flow,
    micro_batches,
    non_finite_records,
    release,
    sensitivity,
)
from steppe.clipping import ClippedSum
from steppe.clipping.gep import GEPClipper
from steppe.clipping.per_layer import PerLayerClipper
from steppe.clipping.quantile import QuantileClipper
from steppe.gradients.record_gradients import RecordGradients, WeightSlots
from steppe.private import Private

SHARE = 0.3


def clipper(kind: type) -> Callable[[Private, int], None]:
    """Give the run another way to clip, behind the plan's back."""

    def apply(private: Private, records: int) -> None:
        private.engine.clipper.__class__ = kind

    return apply


class _NotCentred(QuantileClipper):
    """1 for a norm below the bound and 0 above: a record can move the count twice as far."""

    def _counted(self, norms: Tensor) -> Tensor:
        return self.clip.count_weight * (norms <= self.bound).double()


class _CountsSilentRecords(QuantileClipper):
    """A record without a finite gradient is counted as one with a long gradient."""

    def _counted(self, norms: Tensor) -> Tensor:
        return self.clip.count_weight * torch.where(norms <= self.bound, 0.5, -0.5)


class _OverActualBatch(QuantileClipper):
    """The count is divided by the records that took part, as a well-known library does."""

    actual = 1

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        self.actual = gradients.records
        return super().add_(out, gradients)

    def decode(self, answer: Tensor) -> Tensor:
        answer[-1] *= 8 / self.actual
        return super().decode(answer)


class _BoundFromRecords(QuantileClipper):
    """The bound moves while the batch is read, by the exact count of each piece."""

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        norms = super().add_(out, gradients)
        below = float((norms <= self.bound).double().mean())
        self.bound *= float(torch.tensor(-0.2 * (below - 0.5)).exp())
        return norms


class _NoiseNotSplit(steppe.Quantile):
    """Noise for the gradients alone, as if the count came for nothing."""

    sensitivity = 1.0  # type: ignore[assignment]


class _OneLayerFree(PerLayerClipper):
    def _factors(self, norms: Tensor) -> Tensor:
        factors = super()._factors(norms)
        factors[0] = (factors[0] > 0).double()
        return factors


class _SilentLayerOnly(PerLayerClipper):
    """A record that is not finite in one layer still speaks in the others."""

    def _factors(self, norms: Tensor) -> Tensor:
        return (self._bounds / norms).clamp(max=1.0).nan_to_num(nan=0.0)


class _WholeBoundEach(steppe.PerLayer):
    def bounds(self, layers, sizes):  # type: ignore[no-untyped-def]
        return dict.fromkeys(layers, self.bound)


class _BothPartsForOne(steppe.GEP):
    """Noise as if only one of the two parts were released."""

    sensitivity = 1.0  # type: ignore[assignment]


class _ResidualNotClipped(GEPClipper):
    def _factors(self, part: Tensor, bound: float) -> Tensor:
        if part.shape[1] == self._weights:
            return torch.full((len(part),), 1 / bound, dtype=part.dtype)
        return super()._factors(part, bound)


class _PaddingSpeaks(ClippedSum):
    """Rows that only fill a batch up are clipped and added like records."""

    def add_slots_(
        self, out: Tensor, found: WeightSlots, records: int, scale: float = 1.0, padding: int = 0
    ) -> Tensor:
        return super().add_slots_(out, found, records, scale)[: records - padding]


class _PaddingCounts(QuantileClipper):
    """What adds no gradient is still counted as a record with a long one."""

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        out[-1] -= gradients.padding * self.clip.count_weight / 2
        return super().add_(out, gradients)


def speaking(private: Private, records: int) -> None:
    """Let padding say something."""
    private.engine.__class__ = _PaddingSpeaks


FIXED: dict[str, Any] = {
    "sampling": steppe.CappedPoisson(fixed_shapes=True),
    "adjacency": "zero-out",
}

Check = Callable[[AuditedRun], Result | list[Result]]

CLIP_BUGS: dict[str, tuple[Callable[[], AuditedRun], list[Check]]] = {
    "the count is not centred": (
        lambda: quantile(sabotage=clipper(_NotCentred)),
        [sensitivity, release],
    ),
    "silent records are counted": (
        lambda: quantile(sabotage=clipper(_CountsSilentRecords)),
        [non_finite_records, control_flow],
    ),
    "the count over the actual batch": (
        lambda: quantile(sabotage=clipper(_OverActualBatch)),
        [control_flow],
    ),
    "the bound moves without noise": (
        lambda: quantile(sabotage=clipper(_BoundFromRecords)),
        [micro_batches],
    ),
    "the noise is not split": (
        lambda: quantile(clip=_NoiseNotSplit(start=2.0, count_share=SHARE)),
        [sensitivity, release],
    ),
    "one layer has no bound": (
        lambda: per_layer(sabotage=clipper(_OneLayerFree)),
        [sensitivity, release],
    ),
    "NaN silences its layer only": (
        lambda: per_layer(sabotage=clipper(_SilentLayerOnly)),
        [non_finite_records],
    ),
    "every layer has the whole bound": (
        lambda: mlp(clip=_WholeBoundEach(CLIP)),
        [sensitivity, release],
    ),
    "two parts with the noise of one": (
        lambda: gep(clip=_BothPartsForOne(12, embedding_bound=0.5, residual_bound=0.2)),
        [sensitivity],
    ),
    "the residual is not clipped": (
        lambda: gep(sabotage=clipper(_ResidualNotClipped)),
        [sensitivity],
    ),
    "padding is added": (lambda: quantile(sabotage=speaking, **FIXED), [sensitivity, release]),
    "padding is counted": (
        lambda: quantile(sabotage=clipper(_PaddingCounts), **FIXED),
        [non_finite_records, control_flow],
    ),
}
