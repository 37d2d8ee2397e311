"""Detects plain steps and gradients in a private loop."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.errors import MisuseError


@dataclass(frozen=True)
class _Left:
    """The state of a weight after a private step.

    Attributes:
        version: torch's version counter of the weight, which counts changes in place.
        gradient: the private gradient; weak, so that it is freed when the user clears it.
        counter: an empty tensor that shares the gradient's version counter, but not its memory.
        changes: the value of that counter.
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
    """Detects `loss.backward()` and `optimizer.step()` of a plain loop that are left in a private
    one.

    It needs no hooks, because torch counts the changes of a tensor in place. Two things are
    detected afterwards: a gradient that the private step did not leave, and a private gradient that
    changed together with its weight, as by a backward pass and a plain step. A weight may change
    without its gradient: by averages, loading, bounds or public rules.

    Args:
        parameters: the trained weights, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.note()  # gradients left by pre-training are allowed

    def note(self) -> None:
        """Remember the current weights and gradients."""
        counters: dict[int, Tensor] = {}  # parts of one vector share its version counter
        self._left = {name: _left(weight, counters) for name, weight in self._parameters.items()}

    def require_alone(self) -> None:
        """Raise an error if something else than the private step changed weights or gradients."""
        for name, weight in self._parameters.items():
            if not weight.requires_grad:
                continue
            left, found = self._left[name], weight.grad
            if found is not None and not left.is_gradient(found):
                raise MisuseError(
                    f"gradient of {name!r}=not from a private step: private steps must be the only "
                    "ones, because a step along this gradient has no noise; remove your own "
                    "backward() and optimizer.step() from the loop and start again from new "
                    "weights. After a backward pass on public records call optimizer.zero_grad()."
                )
            moved = weight._version != left.version and left.gradient_changed
            # A gradient of zeros, as after zero_grad(set_to_none=False), may have been added to
            # before, but bounds or averages may have changed the weight as well.
            if moved and (found is None or bool(found.any())):
                raise MisuseError(
                    f"weight {name!r}=moved: private steps must be the only ones, but since the "
                    "last one this weight and its gradient were both changed; do not publish this "
                    "model, remove your own backward() and optimizer.step() from the loop and "
                    "start again from new weights."
                )


def _left(weight: Tensor, counters: dict[int, Tensor]) -> _Left:
    gradient = weight.grad
    if gradient is None or gradient.is_inference() or gradient.layout != torch.strided:
        return _Left(weight._version)  # ours are never of the latter kinds, which have no counter
    owner = id(gradient._base if gradient._is_view() else gradient)
    counter = counters.get(owner)
    if counter is None:
        counter = counters[owner] = gradient.detach()
        counter.data = gradient.new_empty(0)  # frees the memory
    return _Left(weight._version, weakref.ref(gradient), counter, counter._version)
