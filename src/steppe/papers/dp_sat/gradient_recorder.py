"""What a run shows while it goes on: directions with and without their noise, gradient norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.flatness import (
    Cosines,
    CosineTrack,
    Surface,
    gradient_norm_histogram,
    record_gradient_norms,
)
from steppe.papers.pictures import Batch
from steppe.private import Private
from steppe.randomness import SeededSource

# Bins of the histogram end here; the recipe's clip of 0.1 lies in the first.
_LARGEST_NORM = 10.0


class RememberingSource(SeededSource):
    """A seeded source that keeps its last noise, so that an experiment can take it out again."""

    last: Tensor

    def fill_normal_(self, tensor: Tensor, std: float) -> Tensor:
        """As the base class; with a copy."""
        self.last = super().fill_normal_(tensor, std).clone()
        return tensor


class GradientRecorder:
    """Follows a run: cosines of consecutive gradients with and without noise, gradient norms.

    Args:
        source: of the run's noise.
        records: whose gradients are measured.
        moments: after which steps.
    """

    def __init__(self, source: RememberingSource, records: Batch, moments: Mapping[int, str]):
        self._source, self._records, self._moments = source, records, moments
        self._noisy, self._clean = CosineTrack(), CosineTrack()
        self.norms: dict[str, Mapping[str, Any]] = {}

    def __call__(self, private: Private) -> None:
        """After a step."""
        pieces = [p.grad.flatten() for p in private.model.parameters() if p.grad is not None]
        mean = torch.cat(pieces)
        self._noisy.update(mean)
        self._clean.update(mean * private.plan.divisor - self._source.last)
        when = self._moments.get(private.steps_done)
        if when is not None:
            surface = Surface(private.model, F.cross_entropy, [self._records])
            norms = record_gradient_norms(surface)
            clip = float(private.plan.clip.sensitivity)
            found = gradient_norm_histogram(norms, clip, largest=_LARGEST_NORM)
            self.norms[when] = {
                "edges": found.edges,
                "counts": found.counts,
                "beyond": found.beyond,
                "clipped share": found.clipped_share,
                "median": found.median,
            }

    def cosines(self) -> Mapping[str, Any]:
        """Means over the run, and over each twentieth of it."""
        return {
            name: {"mean": found.mean, "over the run": _thinned(found)}
            for name, found in (("noisy", self._noisy.result()), ("clean", self._clean.result()))
        }


def _thinned(found: Cosines, parts: int = 20) -> list[float]:
    size = max(1, len(found.values) // parts)
    chunks = [found.values[i : i + size] for i in range(0, len(found.values), size)]
    return [round(sum(chunk) / len(chunk), 4) for chunk in chunks]
