"""Linear layers: `torch.nn.functional.linear` on records, and the same product written out.

`x @ weight` and `torch.addmm(bias, x, weight)` are linear layers with the weight transposed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.kernel_choice import Candidate
from steppe.gradients.rules.arguments import named, only_input
from steppe.gradients.slots.ghost_norms import cost
from steppe.gradients.slots.outer import Outer, Single, Summed
from steppe.gradients.slots.slot import MaterialisedWithNorms, Slot, wide_dtype


class Linear(ContactOp):
    """y = x Wᵀ + b with any number of axes between the records and the features.

    With T positions, d inputs and p outputs a record's gradient is Σₜ gₜxₜᵀ. Two T×T Gram matrices,
    of which half is enough, give its norm in T²(d+p) multiplications; writing it out takes T·d·p
    and B·d·p numbers of memory. The cheaper one is taken.
    """

    path = "linear"

    def __init__(self, contact: Contact, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(contact)
        self.weight, self.bias = weight, bias

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        (x,) = inputs
        return product(x, self.weight, self.bias).contiguous(), (x,)

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        (x,), (g,) = saved, grads
        if g is None:
            return (None,)
        grad_x = g @ self.weight.to(g.dtype) if needs[0] else None
        rows, grad_rows = self._rows(x, 0), self._rows(g, 1)
        if self.weight.requires_grad:
            dots = None
            if self.contact.want_dots and grad_x is not None and grad_x.dtype == x.dtype:
                dots = dots_by_input(rows, self._rows(grad_x, 0))
            self.slots.append((self.weight, outer(self.contact, rows, grad_rows, dots, needs[0])))
        if self.bias is not None and self.bias.requires_grad:
            beside = self.slots[-1][1] if self.weight.requires_grad else None
            self.slots.append((self.bias, Summed(grad_rows, beside)))
        return (grad_x,)

    def _rows(self, tensor: Tensor, side: int) -> Tensor:
        """(B, T, features), or (B, features) where there is one position, whatever the layout."""
        contact = self.contact
        layout = contact.output_layout() if side else contact.input_layout()
        if layout.axis == 0 and not layout.interleaved:
            if tensor.ndim == 2 and tensor.shape[0] == contact.records:
                return tensor
            # A record may own several rows.
            return tensor.reshape(contact.records, -1, tensor.shape[-1])
        first = layout.records_first(tensor, contact.records)
        return first.reshape(contact.records, -1, tensor.shape[-1])


# Few outputs from many inputs, as in a classifier's last layer: with the factors in the other order
# the same product takes about half the time. In groups of records it needs little workspace, and
# the groups are shared among threads.
_FEW, _MANY, _GROUP = 16, 256, 32
_LEAST = 2 * _GROUP  # threads share a single group in another way, which rounds otherwise


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear(x, weight, bias)`; if it has few columns, they may lie one after another in memory.

    Guarantees:
        A record's outputs are the same to the last bit, whatever the other records are,
        unless torch's own are not. Behind a rounding error may lie a step, such as that of a ReLU,
        which is as high as the clip: one record more must not take the others over it.
    """
    outputs, inputs = weight.shape
    if x.ndim != 2 or outputs > _FEW or inputs < _MANY or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    whole = x.shape[0] - x.shape[0] % _GROUP
    if whole < _LEAST:
        whole = 0
    rest = x.shape[0] - whole
    if rest == 0:
        return _in_groups(x, weight, bias)
    filled = x.new_zeros(_LEAST, inputs)
    filled[:rest] = x[whole:]
    last = _in_groups(filled, weight, bias)[:rest]
    return torch.cat([_in_groups(x[:whole], weight, bias), last]) if whole else last


def _in_groups(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    groups = x.shape[0] // _GROUP
    each = x.view(groups, _GROUP, -1).transpose(1, 2)
    one = weight.expand(groups, -1, -1)
    columns = one @ each if bias is None else torch.baddbmm(bias.unsqueeze(1), one, each)
    return columns.transpose(0, 1).reshape(weight.shape[0], -1).t()


def dots_by_input(x: Tensor, grad_x: Tensor) -> Tensor | None:
    """⟨Σ gxᵀ, W⟩ = Σ ⟨x, Wᵀg⟩ for every record, where Wᵀg, the gradient of x, is known already.

    In half precision that is too coarse for a term that may cancel all others.
    """
    return (grad_x * x).flatten(1).sum(1) if x.dtype == wide_dtype(x) else None


def outer(
    contact: Contact, x: Tensor, g: Tensor, dots: Tensor | None = None, own: bool = False
) -> Slot:
    """Σₜ gₜxₜᵀ by Gram matrices or written out, whichever is faster here.

    Args:
        contact: where it happens.
        x: inputs `(B, T, d)`, or `(B, d)` for one position.
        g: output gradients `(B, T, p)` or `(B, p)`.
        dots: ⟨Gᵢ, W⟩ where they are known already.
        own: whether `x` was computed by the model. A caller may write the next batch over data that
            it gave, unseen, before the sum is taken; norms then have to wait for the sum.
    """
    if x.ndim == 2:
        return Single(x, g, dots)
    records, positions, inputs, outputs = *x.shape, g.shape[2]
    if positions == 1:
        return Single(x[:, 0], g[:, 0], dots)
    product = records * positions * inputs * outputs
    pairs, workspace = cost(x, g)
    candidates = {
        "gram": Candidate(
            lambda: Outer(x, g, dots).measured() if own else Outer(x, g, dots),
            product + pairs,
            workspace,
        ),
        "kept": Candidate(
            lambda: MaterialisedWithNorms(Outer(x, g).written_out()),
            product + 2.0 * records * inputs * outputs,
            4.0 * records * inputs * outputs,
        ),
    }
    key = f"linear {inputs}->{outputs} T={positions}"
    return contact.kernels.pick(key, candidates, inputs * outputs, wide_dtype(x))


def linear(contact: Contact) -> ContactOp | None:
    """Rule for `F.linear(x, weight, bias)`; declines where the record is the weight."""
    x, weight, bias = named(contact, "input weight bias").values()
    return Linear(contact, weight, bias) if _is_linear(contact, x, weight) else None


def matmul(contact: Contact) -> ContactOp | None:
    """Rule for `x @ weight` by any name; declines where the weight comes first."""
    if contact.kwargs or len(contact.args) != 2:
        return None
    x, weight = contact.args
    return Linear(contact, weight.t(), None) if _is_linear(contact, x, weight) else None


def addmm(contact: Contact) -> ContactOp | None:
    """Rule for `torch.addmm(bias, x, weight)`; declines where the bias is a matrix."""
    if contact.kwargs or len(contact.args) != 3:
        return None
    bias, x, weight = contact.args
    if not _is_linear(contact, x, weight) or bias.shape != weight.shape[1:]:
        return None
    return Linear(contact, weight.t(), bias)


def _is_linear(contact: Contact, x: Tensor, weight: Tensor | None) -> bool:
    """Whether rows made from records, and nothing else, meet a matrix of weights."""
    return only_input(contact, x) and x.ndim >= 2 and weight is not None and weight.ndim == 2
