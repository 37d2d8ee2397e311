"""Whether an optimizer's step uses the private gradient."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType

from torch import Tensor
from torch.optim import Optimizer


class GradientInUse:
    """The private gradient, from `hand_over` to the end of the optimizer's step.

    The step of a subclass may call the step of its parent, and a step that failed may be called
    again. Neither needs a new gradient. Hooks of torch are called when a step begins and when it
    succeeds, but not when it fails. Therefore the call stack shows whether a step runs inside
    another one.

    Args:
        optimizer: uses the gradient.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._noted: dict[int, tuple[Tensor, int]] = {}  # by weight, with the count of changes

    def note(self, weights: Iterable[Tensor]) -> None:
        """Remember the current gradients of these weights as the private ones."""
        self._noted = {
            id(weight): (weight.grad, weight.grad._version)
            for weight in weights
            if weight.grad is not None
        }

    def forget(self) -> None:
        """Forget the gradient: its step is over, or another batch was drawn."""
        self._noted = {}

    @property
    def is_in_use(self) -> bool:
        """Whether the step that begins now uses it: a step inside the one it was made for, or a
        second attempt with the same gradient.

        Called by a hook of the optimizer.
        """
        if not self._noted:
            return False
        return self.is_inside(sys._getframe(1)) or all(
            weight.grad is None or self._is_noted(weight)
            for group in self._optimizer.param_groups
            for weight in group["params"]
        )

    def is_inside(self, hook: FrameType) -> bool:
        """Whether the step that calls a hook runs inside another step of the optimizer.

        Args:
            hook: the frame of the hook.
        """
        own: FrameType | None = hook
        while own is not None and own.f_code is not _AROUND_STEP:
            own = own.f_back
        frame = None if own is None else own.f_back
        while frame is not None:
            if frame.f_code is _AROUND_STEP and frame.f_locals["self"] is self._optimizer:
                return True
            frame = frame.f_back
        return False

    def _is_noted(self, weight: Tensor) -> bool:
        gradient, changes = self._noted.get(id(weight), (None, 0))
        return gradient is not None and weight.grad is gradient and gradient._version == changes


# torch wraps the steps of all optimizers in this function, which calls the hooks.
_AROUND_STEP = Optimizer.profile_hook_step(lambda self: None).__code__
