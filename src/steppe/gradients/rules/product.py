"""Products that a model writes out: `x @ weight` and `torch.addmm(bias, x, weight)`.

They are linear layers with the weight the other way round, so they take the same path.
"""

from __future__ import annotations

from torch import Tensor

from steppe.gradients.contact import Contact, ContactOp
from steppe.gradients.rules.arguments import only_input
from steppe.gradients.rules.linear import Linear


def product(contact: Contact) -> ContactOp | None:
    """Rule for `x @ weight` by any name; declines where the weight comes first."""
    if contact.kwargs or len(contact.args) != 2:
        return None
    x, weight = contact.args
    return _linear(contact, x, weight, None)


def product_plus(contact: Contact) -> ContactOp | None:
    """Rule for `torch.addmm(bias, x, weight)`; declines where the bias is a matrix."""
    if contact.kwargs or len(contact.args) != 3:
        return None
    bias, x, weight = contact.args
    return _linear(contact, x, weight, bias) if bias.shape == weight.shape[1:] else None


def _linear(contact: Contact, x: Tensor, weight: Tensor, bias: Tensor | None) -> ContactOp | None:
    if not only_input(contact, x) or x.ndim < 2 or weight.ndim != 2:
        return None
    return Linear(contact, weight.t(), bias)
