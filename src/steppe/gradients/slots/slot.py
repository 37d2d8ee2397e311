"""Slots: the per-example gradients of one weight, in whatever form is cheapest.

A *slot* represents the per-example gradients G₁ … G_B of one shared tensor, usually without
storing them. It computes the squared norms, adds Σᵢ cᵢGᵢ to a buffer, computes the inner products
with the weight itself and, if nothing else is possible, materialises the gradients.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from steppe.errors import UnsupportedModelError
from steppe.gradients.layout import RecordLayout


def squared_rows(rows: Tensor) -> Tensor:
    """Squared l2 norm of every row of a `(B, ...)` tensor in float64, accurate to its own rounding.

    A one-level float32 sum over millions of entries is off by 1e-4 and more. Two levels of about
    √n terms each are off by 1e-7, at the same speed.

    Guarantees:
        Not below the true value by more than rounding. Squares of entries below √tiny underflow;
        the most that they can add to the norm is added instead.
    """
    flat = wide(rows if rows.ndim == 2 else rows.reshape(rows.shape[0], -1))
    length = flat.shape[1]
    if length <= SHORT and flat.dtype == torch.float32:
        exact = flat.double()
        return exact.mul_(exact).sum(1)
    if length <= 2048:
        norms = torch.linalg.vector_norm(flat, dim=1)
    else:
        chunk = 1024
        whole = length // chunk * chunk
        parts = torch.linalg.vector_norm(flat[:, :whole].reshape(len(flat), -1, chunk), dim=2)
        if whole < length:
            rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, keepdim=True)
            parts = torch.cat([parts, rest], dim=1)
        norms = torch.linalg.vector_norm(parts, dim=1)
    # Products of squares leave float32, and torch converts the number to add for any other type.
    norms = norms.double().add_(_underflow(flat.dtype, length))
    return norms.mul_(norms)


CANCELLED = 5.0
"""Units in the last place of two squared norms that are added on top where gradients may cancel
against each other: more than was seen, and no proof, as there is where positions cancel."""


def inner_products(rows: Tensor, vector: Tensor) -> Tensor:
    """⟨row, vector⟩ for every row of a `(B, n)` matrix, in float64.

    In float32 one product over millions of numbers is off by 1e-4, and parts of it by 1e-6 at most.
    """
    total = rows.new_zeros(len(rows), dtype=torch.float64)
    for some, part in zip(rows.split(_PART, 1), vector.split(_PART), strict=True):
        total += some @ part
    return total


_PART = 2**13


def zero_rows(tensor: Tensor, bad: Tensor) -> Tensor:
    """The tensor with the rows of non-finite records set to zero.

    A factor of zero is not enough: 0 × NaN is NaN. The result is the same whichever way the
    records were arranged; nothing but the time it takes depends on how many there are.
    """
    return tensor.index_fill(0, bad, 0.0) if bad.numel() else tensor


def matrix_of(gradients: Tensor) -> Tensor:
    """Every record's gradient as one row; a weight without axes has rows of one number."""
    return gradients.unsqueeze(-1).flatten(1)


def reduced_to(shape: torch.Size, gradients: Tensor) -> Tensor:
    """Undo an expansion: every record's gradient, summed over the axes along which a tensor of this
    shape was repeated."""
    records, repeated = len(gradients), [1] * (gradients.ndim - 1 - len(shape))
    return gradients.sum_to_size(records, *repeated, *shape).reshape(records, *shape)


class Slot(ABC):
    """The per-example gradients of one shared tensor, in whatever form is cheapest."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """‖Gᵢ‖² for every record, float32 or wider, never below the true value by more than
        rounding."""

    @abstractmethod
    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        """out += Σᵢ factorsᵢ Gᵢ, leaving out the records listed in `bad`."""

    @abstractmethod
    def written_out(self) -> Tensor:
        """G as one `(B, *shape)` tensor."""

    def dots(self, weight: Tensor) -> Tensor:
        """⟨Gᵢ, weight⟩ for every record."""
        gradients = matrix_of(wide(self.written_out()))
        return inner_products(gradients, weight.flatten().to(gradients.dtype))

    def transposed(self) -> Slot:
        """The gradients of a matrix, from those of its transpose."""
        return Materialised(self.written_out().mT)


class Materialised(Slot):
    """Gradients that were cheap enough to write out during the backward pass."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def squared_norms(self) -> Tensor:
        return squared_rows(self.gradients)

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        rows = matrix_of(zero_rows(self.gradients, bad)).to(out.dtype)
        out.view(-1).addmv_(rows.t(), factors)

    def written_out(self) -> Tensor:
        return self.gradients


class MaterialisedWithNorms(Materialised):
    """Gradients whose norms are taken at once, while they are in cache."""

    def __init__(self, gradients: Tensor) -> None:
        super().__init__(gradients)
        self._norms = squared_rows(gradients)

    def squared_norms(self) -> Tensor:
        return self._norms


class OwnRows(Materialised):
    """Gradients of a shared tensor that has a row for each record: only its own row is non-zero."""

    def __init__(self, layout: RecordLayout, gradients: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__(gradients)
        self.layout, self.shape = layout, shape

    def written_out(self) -> Tensor:
        records = len(self.gradients)
        full = self.gradients.new_zeros((records, *self.shape))
        views = self.layout.split(full.movedim(0, -1), records)
        which = torch.arange(records, device=full.device)
        # views: (record as row, ..., record as owner); fill the diagonal.
        views.movedim(-1, 1)[which, which] = self.gradients
        return full

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        Materialised(self.written_out()).add_(out, factors, bad)


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """What a tensor's numbers are accumulated in."""
    return tensor.dtype if tensor.dtype == torch.float64 else torch.float32


def wide(tensor: Tensor) -> Tensor:
    """float32 or float64: half precision is never accurate enough to clip by."""
    if tensor.dtype in _WIDE:
        return tensor
    if tensor.is_complex():  # `float` would silently drop the imaginary part
        raise UnsupportedModelError(
            f"gradient={tensor.dtype}: must be of real numbers; train the real and the imaginary "
            "part as two weights (torch.view_as_complex)."
        )
    return tensor.float()


_WIDE = (torch.float32, torch.float64)
NO_RECORDS = torch.zeros(0, dtype=torch.long, device="cpu")
"""Places of records that are left out, where there are none."""

# Rows so short are summed in float64, where no square of a float32 underflows, in less time than it
# takes to correct a float32 sum. A bound on the length alone: it must not depend on the records.
SHORT = 16


@functools.cache
def _underflow(dtype: torch.dtype, length: int) -> Tensor:
    """The most that `length` entries can add to a norm whose squares underflow.

    As a tensor: torch would make one of a Python float every time.
    """
    largest = 2.0 * math.sqrt(torch.finfo(dtype).tiny)  # twice the root of the smallest square
    return torch.tensor(largest * math.sqrt(length), dtype=torch.float64, device="cpu")
