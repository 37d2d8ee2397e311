"""Perturbations of the weights: an ascent step, and the largest norm that it may have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.pretraining.method import Tensors
from steppe.utils import validation

_TINY = 1e-12
_SCOPES = ("model", "tensor")


@dataclass(frozen=True)
class Ascent:
    """One ascent step and its cap: lines 5 to 8 of DPAdapter's Algorithm 1.

    Args:
        rate: η₁, the length of the step relative to the gradient.
        cap: γ, the largest l2 norm of the perturbation; None for no cap. A longer one is scaled
            down to γ, a shorter one stays as it is.
        scope: "model" caps the norm over all weights together, "tensor" that of each tensor.

    Examples:
        >>> ascent = Ascent(rate=1.0, cap=0.5, scope="model")
        >>> ascent.of([torch.tensor([3.0, 4.0])])
        [tensor([0.3000, 0.4000])]
        >>> ascent.of([torch.tensor([0.3, 0.0])])
        [tensor([0.3000, 0.0000])]
    """

    rate: float
    cap: float | None
    scope: str

    def __post_init__(self) -> None:
        rate = validation.positive("rate", self.rate, "1.0 is common; use Standard() for none")
        object.__setattr__(self, "rate", rate)
        if self.cap is not None:
            remedy = "0.5 to 2 is common; use Standard() for no perturbation, None for no cap"
            object.__setattr__(self, "cap", validation.positive("cap", self.cap, remedy))
        validation.one_of("scope", self.scope, _SCOPES)

    def of(self, gradient: Tensors) -> list[Tensor]:
        """The perturbation for a gradient."""
        steps = [self.rate * one for one in gradient]
        if self.cap is None:
            return steps
        if self.scope == "tensor":
            return [one * _shrink(self.cap, one.norm()) for one in steps]
        factor = _shrink(self.cap, norm(steps))
        return [one * factor for one in steps]


def norm(tensors: Tensors) -> Tensor:
    """The l2 norm over all tensors together."""
    return torch.stack([one.norm() for one in tensors]).norm()


def to_length(tensors: Tensors, length: float) -> list[Tensor]:
    """Scale tensors to a common l2 norm; zeros stay zeros."""
    factor = length / (norm(tensors) + _TINY)
    return [one * factor for one in tensors]


def _shrink(cap: float, length: Tensor) -> Tensor:
    """The factor that brings a length above the cap down to it."""
    return torch.clamp(cap / length.clamp_min(_TINY), max=1.0)
