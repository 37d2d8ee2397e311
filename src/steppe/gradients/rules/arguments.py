"""A contact's arguments by name, however the model passed them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from steppe.gradients.contact import Contact


def named(contact: Contact, names: str) -> dict[str, Any]:
    """The call's arguments by name; None for those left out.

    Args:
        contact: the call.
        names: the function's parameters in the order of its signature, between blanks.
    """
    parameters = names.split()
    given = dict(zip(parameters, contact.args, strict=False)) | contact.kwargs
    return {name: given.get(name) for name in parameters}


def only_input(contact: Contact, tensor: Any) -> bool:
    """Whether `tensor` is the one argument that was made from records."""
    return len(contact.inputs) == 1 and contact.inputs[0] is tensor


def only_shared(contact: Contact, *tensors: Tensor | None) -> bool:
    """Whether no other argument than `tensors` would need per-example gradients."""
    return all(any(shared is tensor for tensor in tensors) for shared in contact.shared)
