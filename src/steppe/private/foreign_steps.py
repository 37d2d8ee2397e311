"""Steps and gradients of the user's own in a private loop."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.errors import MisuseError


@dataclass(frozen=True)
class _Left:
    """How the private step left a weight.

    Attributes:
        version: torch's count of the weight's changes in place.
        gradient: the private gradient, which may go when the user clears it.
        counter: an empty tensor that shares the gradient's count of changes and not its memory.
        changes: that count.
    """

    version: int
    gradient: weakref.ref[Tensor] | None = None
    counter: Tensor | None = None
    changes: int = 0

    def is_gradient(self, found: Tensor) -> bool:
        """Whether this is the private gradient itself."""
        return self.gradient is not None and self.gradient() is found

    @property
    def gradient_changed(self) -> bool:
        """Whether something was added to the private gradient, or it was scaled or zeroed."""
        return self.counter is not None and self.counter._version != self.changes


class ForeignSteps:
    """Notices the lines of a plain loop, `loss.backward()` and `optimizer.step()`, left in a
    private one.

    Nothing is hooked for it. torch itself counts how often a tensor is changed in place, so after
    the fact two things can be seen: a gradient that is not the one the private step left, and a
    private gradient that was changed together with its weight, as a backward pass that adds to it
    and a step do. Weights alone may change: by averages, loading, bounds, public rules.

    Args:
        parameters: the trained weights, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.note()  # what pre-training left behind is nobody's mistake

    def note(self) -> None:
        """Remember weights and gradients as they are now."""
        counters: dict[int, Tensor] = {}  # parts of one vector share its count
        self._left = {name: _left(weight, counters) for name, weight in self._parameters.items()}

    def require_alone(self) -> None:
        """Refuse to go on where something else than the private step was at work."""
        for name, weight in self._parameters.items():
            if not weight.requires_grad:
                continue
            left, found = self._left[name], weight.grad
            if found is not None and not left.is_gradient(found):
                raise MisuseError(
                    f"gradient of {name!r}=not from a private step: private steps must be the only "
                    "ones, a step along this gradient has no noise; take your own backward() and "
                    "optimizer.step() out of the loop and begin again from fresh weights. After a "
                    "backward pass on public records call optimizer.zero_grad()."
                )
            moved = weight._version != left.version and left.gradient_changed
            # Zeroed, as by zero_grad(set_to_none=False): nothing is left of what was added, if it
            # was, and bounds or averages may well have changed the weight.
            if moved and (found is None or bool(found.any())):
                raise MisuseError(
                    f"weight {name!r}=moved: private steps must be the only ones, and since the "
                    "last one this weight and its gradient were both changed; do not publish this "
                    "model, take your own backward() and optimizer.step() out of the loop and "
                    "begin again from fresh weights."
                )


def _left(weight: Tensor, counters: dict[int, Tensor]) -> _Left:
    gradient = weight.grad
    if gradient is None or gradient.is_inference() or gradient.layout != torch.strided:
        return _Left(weight._version)  # the latter two have no count to share, and are not ours
    owner = id(gradient._base if gradient._is_view() else gradient)
    counter = counters.get(owner)
    if counter is None:
        counter = counters[owner] = gradient.detach()
        counter.data = gradient.new_empty(0)  # lets go of the memory
    return _Left(weight._version, weakref.ref(gradient), counter, counter._version)
