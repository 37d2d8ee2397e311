"""Per-record gradients of recurrent weights: sums over time."""

from __future__ import annotations

from torch import Tensor

from steppe.clipping.contact import Contact
from steppe.clipping.grams import cost
from steppe.clipping.kernels import Candidate
from steppe.clipping.slots import Kept, Outer, Single, Slot, blank, wide_dtype


class InTime(Outer):
    """Σₜ δₜxₜᵀ where memory is time-major: `x` and `g` are views of `(T, B, features)`."""

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        x, g = blank(self.x, bad), blank(self.g, bad)
        x = x * factors.to(x.dtype)[:, None, None]  # the gates are always the wider side
        # Time first: that is how both lie in memory, so neither is copied.
        x, g = x.transpose(0, 1).flatten(0, 1), g.transpose(0, 1).flatten(0, 1)
        out.view(g.shape[1], x.shape[1]).addmm_(g.t().to(out.dtype), x.to(out.dtype))


def outer_in_time(contact: Contact, x: Tensor, delta: Tensor, dots: Tensor | None) -> Slot:
    """Σₜ δₜxₜᵀ by Gram matrices or written out, whichever is faster here.

    Args:
        contact: where it happens.
        x: what δ meets, `(B, T, d)`, a view of `(T, B, d)`.
        delta: `(B, T, gates)`, likewise.
        dots: ⟨Gᵢ, W⟩ where they are known already.
    """
    records, positions, inputs, outputs = *x.shape, delta.shape[2]
    if positions == 1:
        return Single(x[:, 0], delta[:, 0], dots)
    product = records * positions * inputs * outputs
    pairs, workspace = cost(x, delta)
    candidates = {
        "gram": Candidate(lambda: InTime(x, delta, dots), product + pairs, workspace),
        "kept": Candidate(
            lambda: Kept(Outer(x, delta).written_out()),
            product + 2.0 * records * inputs * outputs,
            4.0 * records * inputs * outputs,
        ),
    }
    key = f"recurrent {inputs}->{outputs} T={positions}"
    return contact.kernels.pick(key, candidates, inputs * outputs, wide_dtype(x))
