"""The per-example gradients of one physical batch, λθ included, without writing them out.

The input of a clip, which reads norms, chooses factors and adds the weighted sum to a flat buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from steppe.gradients.flat_weights import FlatWeights, Pulls
from steppe.gradients.slots.slot import (
    CANCELLED,
    NO_RECORDS,
    Slot,
    matrix_of,
    squared_rows,
    wide,
    wide_dtype,
)

WeightSlots = list[tuple[Tensor, Slot]]
"""Trained weights that a batch used, each with its records' gradients."""


def representable(factors: Tensor, dtype: torch.dtype) -> Tensor:
    """The factors in a buffer's type, with 0 for those that float32 cannot hold to full precision
    and for those that are no numbers.

    Below 1e-38 float32 rounds to few digits and then to none, up to twice the number. A gradient so
    long that it calls for such a factor is treated like one that is not finite.

    Examples:
        >>> representable(torch.tensor([0.5, 1e-44], dtype=torch.float64), torch.float32)
        tensor([0.5000, 0.0000])
    """
    return torch.where(factors >= _SMALLEST, factors, 0.0).to(dtype)


_SMALLEST = torch.finfo(torch.float32).tiny


def _usable(factors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`representable` factors, and the positions of zeros: records to leave out."""
    factors = factors.to(dtype)
    if factors.shape[0] == 0 or float(factors.min()) >= _SMALLEST:
        return factors, NO_RECORDS
    bad = torch.nonzero(~(factors >= _SMALLEST)).flatten()
    return factors.index_fill(0, bad, 0.0), bad


class RecordGradients:
    """Every record's gradient gᵢ + λθ of one physical batch.

    Args:
        found: from `ClippedSum.slots` or `collected`.
        records: how many records they belong to.
        scale: what turns a captured gradient into the record's own: B after a loss that was
            averaged over the B records.
        weights: their positions in flat vectors.
        pulls: the weights with a term λθ; by default all with a λ.
        padding: how many of the records, the last ones, are padding rows.

    Guarantees:
        For a clip, padding rows are records whose gradients are not finite; they add exactly zero
        with any factor.
    """

    def __init__(
        self,
        found: WeightSlots,
        records: int,
        scale: float,
        weights: FlatWeights,
        pulls: Pulls | None = None,
        padding: int = 0,
    ) -> None:
        self.found, self.records, self.scale, self.weights = found, records, scale, weights
        self.pulls = weights.pulls if pulls is None else pulls
        self.padding = padding
        self._padding_is_finite = False  # until its norms were seen

    def split(self, layer_of: Mapping[int, int], layers: int) -> list[RecordGradients]:
        """The same gradients in parts, layer by layer.

        The gradients are moved to the parts, so that those of a part are freed once it is added.

        Args:
            layer_of: the number of the layer that a weight belongs to, by `id(weight)`.
            layers: how many there are.
        """
        parts = [
            RecordGradients([], self.records, self.scale, self.weights, [], self.padding)
            for _ in range(layers)
        ]
        for leaf, slot in self.found:
            parts[layer_of[id(leaf)]].found.append((leaf, slot))
        self.found.clear()
        for leaf, strength in self.pulls:
            parts[layer_of[id(leaf)]].pulls.append((leaf, strength))
        return parts

    def squared_norms(self) -> Tensor:
        """‖gᵢ + λθ‖² for every record, in float64.

        Guarantees:
            Not below the true value by more than rounding; not finite where the gradient is not.
        """
        parts = [slot.squared_norms() for _, slot in self.found] or [
            torch.zeros(self.records, device=self.weights.device)
        ]
        # Many small terms: add them in float64. Not in place, since a slot may keep its norms.
        squared = parts[0].double()
        for part in parts[1:]:
            squared = squared + part
        if self.scale != 1.0:
            squared = squared * self.scale**2
        if self.pulls:
            crossed = torch.zeros_like(squared)
            strength_of = self.weights.strength_of
            for leaf, slot in self.found:
                if strength := strength_of.get(id(leaf)):
                    crossed += (2 * strength * self.scale) * slot.dots(leaf.detach())
            pull = sum(s**2 * float(squared_rows(p.detach()[None])) for p, s in self.pulls)
            # The three terms may cancel; as in the slots, the rounding they leave is added on top.
            eps = max(torch.finfo(wide_dtype(parameter)).eps for parameter, _ in self.pulls)
            guard = CANCELLED * eps * (squared + pull)
            squared = (squared + crossed + pull).clamp_(min=0.0) + guard
            # An inner product may leave float32 where the norms do not. Minus infinity is no short
            # gradient: such a record counts as one that is not finite.
            squared.masked_fill_(~torch.isfinite(crossed), math.inf)
        if self.padding:
            own, made_up = squared.split([self.records - self.padding, self.padding])
            self._padding_is_finite = bool(torch.isfinite(made_up).all())
            squared = torch.cat([own, torch.full_like(made_up, math.inf)])
        return squared

    def add_(self, out: Tensor, factors: Tensor) -> None:
        """out += Σᵢ factorᵢ (gᵢ + λθ); records with factor 0 are left out, NaN or not.

        The gradients are freed: each is released once it is added, last layer first, so that there
        is memory for copies that the next one needs.

        Args:
            out: a flat buffer with a number for each weight.
            factors: one for each record.
        """
        usable = self._usable_beside_padding if self.padding else _usable
        factors, bad = usable(factors, out.dtype)
        weights = factors if self.scale == 1.0 else factors * self.scale
        while self.found:
            leaf, slot = self.found.pop()
            start, end = self.weights.slices[id(leaf)]
            if out.dtype == wide_dtype(leaf):
                slot.add_(out[start:end], weights, bad)
            else:  # float64 weights beside float32 ones
                part = torch.zeros(end - start, dtype=wide_dtype(leaf), device=out.device)
                slot.add_(part, weights.to(part.dtype), bad)
                out[start:end] += part
        if self.pulls:
            total = float(factors.sum(dtype=torch.float64))
            for parameter, strength in self.pulls:
                start, end = self.weights.slices[id(parameter)]
                out[start:end].add_(parameter.detach().flatten(), alpha=strength * total)

    def _usable_beside_padding(self, factors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`_usable`, with 0 for padding, which is left out like a record that is not finite.

        If all numbers of the padding are finite, a factor of 0 is enough and nothing is copied.
        """
        own, bad = _usable(factors[: -self.padding], dtype)
        if not self._padding_is_finite:
            last = torch.arange(len(own), self.records, device=own.device)
            bad = torch.cat([bad.to(own.device), last])
        return torch.cat([own, own.new_zeros(self.padding)]), bad

    def written_out(self, dtype: torch.dtype) -> Tensor:
        """All gradients as one `(records, weights)` matrix, for clips that use directions."""
        matrix = torch.zeros(
            self.records, self.weights.numel, dtype=dtype, device=self.weights.device
        )
        for leaf, slot in self.found:
            start, end = self.weights.slices[id(leaf)]
            matrix[:, start:end] = matrix_of(wide(slot.written_out()))
        if self.scale != 1.0:
            matrix *= self.scale
        for parameter, strength in self.pulls:
            start, end = self.weights.slices[id(parameter)]
            matrix[:, start:end].add_(parameter.detach().flatten(), alpha=strength)
        if self.padding:
            matrix[-self.padding :] = math.inf
        return matrix
