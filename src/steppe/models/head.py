"""The head of a network: its last linear layer."""

from __future__ import annotations

from torch import nn

from steppe.utils import validation


def head_name(model: nn.Module) -> str:
    """The name of a network's head: its last module with weights, which must be linear.

    Args:
        model: any network.

    Examples:
        >>> head_name(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        '2'
    """
    name, last = "", None
    for found, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            name, last = found, module
    if not isinstance(last, nn.Linear):
        raise validation.fail(
            "head",
            "none" if last is None else f"{name!r}, a {type(last).__name__}",
            "the last layer with weights must be torch.nn.Linear to be replaced as a head",
            "replace the head in your own code",
        )
    if not name:
        raise validation.fail(
            "head",
            type(model).__name__,
            "is the whole model, so nothing of a start would be left",
            "give a network with layers before its head",
        )
    return name


def head_of(model: nn.Module) -> nn.Linear:
    """The head itself."""
    found = model.get_submodule(head_name(model))
    assert isinstance(found, nn.Linear)  # noqa: S101 - `head_name` has checked it
    return found


def set_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Replace a submodule."""
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, new)
