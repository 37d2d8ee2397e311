"""Clipping norms with the arguments of Opacus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import Clip, Flat, PerLayer
from steppe.utils import validation

_HINT = "a common start is 0.1 to 1"


@dataclass(frozen=True)
class Bounds:
    """One clipping norm for the whole gradient, or one for each trained weight.

    Attributes:
        total: the largest norm of a per-example gradient: with a norm cᵢ for each weight, √Σcᵢ².
        each: the norms in the order of the optimizer's weights; None for a single norm.
    """

    total: float
    each: tuple[float, ...] | None = None

    def clip(self, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> Clip:
        """The clip of a run.

        Args:
            parameters: the trained weights, by name.
            optimizer: its weights define the order of the bounds.
        """
        if self.each is None:
            return Flat(self.total)
        names = {id(weight): name for name, weight in parameters.items()}
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        trained = [names[key] for key in held if key in names]
        if len(trained) != len(self.each):
            raise validation.fail(
                "max_grad_norm",
                f"{len(self.each)} bounds",
                f"must be {len(trained)}, one for each trained weight in the optimizer's order",
                "give one bound per trained weight",
            )
        squares = {name: bound**2 for name, bound in zip(trained, self.each, strict=True)}
        return PerLayer(self.total, squares)


def bounds_of(clipping: str, max_grad_norm: Any) -> Bounds:
    """The bounds that `clipping` and `max_grad_norm` define.

    Examples:
        >>> bounds_of("per_layer", [3.0, 4.0]).total
        5.0
    """
    if clipping == "flat":
        return Bounds(validation.positive("max_grad_norm", max_grad_norm, _HINT))
    if isinstance(max_grad_norm, str) or not isinstance(max_grad_norm, Sequence):
        raise validation.fail(
            "max_grad_norm",
            max_grad_norm,
            "must be a list of bounds with clipping='per_layer'",
            "give one for each trained weight",
        )
    each = tuple(validation.positive("max_grad_norm", bound, _HINT) for bound in max_grad_norm)
    if not each:
        raise validation.fail(
            "max_grad_norm", [], "must hold some bounds", "give one for each trained weight"
        )
    return Bounds(math.hypot(*each), each)
