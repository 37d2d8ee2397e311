"""Along which gradient does an optimizer step?"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType

from torch import Tensor
from torch.optim import Optimizer


class GradientInUse:
    """The private gradient, from when a run hands it over to the end of the optimizer's step.

    A step may call others of the same optimizer, as that of a subclass calls that of its parent,
    and one that failed may be called again. Neither asks for another gradient. Torch tells hooks
    that a step begins and that it has ended well, and nothing of one that failed: whether a step is
    inside another is read from the calls that led to it.

    Args:
        optimizer: steps along it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._noted: dict[int, tuple[Tensor, int]] = {}  # by weight, with the count of changes

    def note(self, weights: Iterable[Tensor]) -> None:
        """The gradients that these weights have now are the private ones."""
        self._noted = {
            id(weight): (weight.grad, weight.grad._version)
            for weight in weights
            if weight.grad is not None
        }

    def forget(self) -> None:
        """Its step is over, or another batch was drawn."""
        self._noted = {}

    @property
    def is_in_use(self) -> bool:
        """Whether the step that begins now goes along it: inside the step that it was made for, or
        after that failed, with the gradient as it was.

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
        """Whether a step that calls a hook was itself called by a step of the optimizer.

        Args:
            hook: what the hook runs in.
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


# What torch puts around the steps of all optimizers, and calls hooks from.
_AROUND_STEP = Optimizer.profile_hook_step(lambda self: None).__code__
