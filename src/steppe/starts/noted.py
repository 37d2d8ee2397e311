"""Notes on a model the starts that its weights came from, for the privacy statement."""

from __future__ import annotations

from torch import nn

from steppe.starts.files import Start

_ATTRIBUTE = "_steppe_starts"
Note = tuple[str, str]
"""What the statement says, and the hash of the start."""


def begins_with(module: nn.Module, start: Start) -> None:
    """Note that a module's weights are those of a start.

    The note is no weight and no buffer, so the state dict stays as it is. Copies of the module have
    it too.

    Args:
        module: a model, or a part of one.
        start: its weights.
    """
    setattr(module, _ATTRIBUTE, ((start.card.sentence, start.sha256),))


def begins_with_those_of(module: nn.Module, other: nn.Module) -> None:
    """Note on a module the starts of another, whose outputs it is trained on.

    Args:
        module: such as a head.
        other: such as the network below it.
    """
    setattr(module, _ATTRIBUTE, tuple(dict.fromkeys((*starts_of(module), *starts_of(other)))))


def starts_of(model: nn.Module) -> tuple[Note, ...]:
    """The starts of a model and of its parts, each once.

    Args:
        model: possibly with parts that have a start of their own.

    Examples:
        >>> starts_of(nn.Linear(2, 1))
        ()
    """
    found = (note for module in model.modules() for note in getattr(module, _ATTRIBUTE, ()))
    return tuple(dict.fromkeys(found))
