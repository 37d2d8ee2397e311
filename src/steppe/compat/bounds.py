"""Clipping norms with the arguments of Opacus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import Clip, Flat, PerLayer, Quantile
from steppe.utils import validation

_HINT = "a common start is 0.1 to 1"
# The constants of Quantile by the names that Opacus has for them, for messages.
_QUANTILE = {
    "Quantile.target": "target_unclipped_quantile",
    "Quantile.learning_rate": "clipbound_learning_rate",
    "Quantile.start": "max_grad_norm",
    "Quantile.low": "min_clipbound",
    "Quantile.high": "max_clipbound",
    "count_noise": "unclipped_num_std",
}
ADAPTIVE = (
    "target_unclipped_quantile",
    "clipbound_learning_rate",
    "min_clipbound",
    "max_clipbound",
    "unclipped_num_std",
)


@dataclass(frozen=True)
class Adaptive:
    """What `clipping="adaptive"` needs beside the first clipping norm.

    Attributes:
        target_unclipped_quantile: the share of records that should pass unclipped.
        clipbound_learning_rate: how fast the logarithm of the norm follows.
        min_clipbound, max_clipbound: the range of the norm.
        unclipped_num_std: standard deviation of the noise on the number of unclipped records.
    """

    target_unclipped_quantile: float
    clipbound_learning_rate: float
    min_clipbound: float
    max_clipbound: float
    unclipped_num_std: float

    def clip(self, start: float, noise_multiplier: float) -> Quantile:
        """The same as a clip of this library, at a share of the run's own noise multiplier."""
        with validation.called(_QUANTILE):
            share = Quantile.share_for(noise_multiplier, self.unclipped_num_std)
            return Quantile(
                target=self.target_unclipped_quantile,
                learning_rate=self.clipbound_learning_rate,
                start=start,
                low=self.min_clipbound,
                high=self.max_clipbound,
                count_share=share,
            )


@dataclass(frozen=True)
class Bounds:
    """One clipping norm for the whole gradient, or one for each trained weight.

    Attributes:
        total: the largest norm of a per-example gradient: with a norm cᵢ for each weight, √Σcᵢ².
        each: the norms in the order of the optimizer's weights; None for a single norm.
        adaptive: how the norm moves; None for a constant one.
    """

    total: float
    each: tuple[float, ...] | None = None
    adaptive: Adaptive | None = None

    def clip(
        self, parameters: Mapping[str, Tensor], optimizer: Optimizer, noise_multiplier: float
    ) -> Clip:
        """The clip of a run.

        Args:
            parameters: the trained weights, by name.
            optimizer: its weights define the order of the bounds.
            noise_multiplier: of the run.
        """
        if self.adaptive is not None:
            return self.adaptive.clip(self.total, noise_multiplier)
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


def bounds_of(clipping: str, max_grad_norm: Any, adaptive: Mapping[str, Any]) -> Bounds:
    """The bounds that `clipping`, `max_grad_norm` and the keywords of "adaptive" define.

    Examples:
        >>> bounds_of("per_layer", [3.0, 4.0], {}).total
        5.0
    """
    if clipping == "adaptive":
        start = validation.positive("max_grad_norm", max_grad_norm, _HINT)
        for name in ADAPTIVE:
            if adaptive.get(name) is None:
                raise validation.missing(name, f"give {name}=", "is required by adaptive clipping")
        return Bounds(start, adaptive=Adaptive(**adaptive))
    for name in adaptive:
        raise validation.fail(
            "clipping", clipping, f"must be 'adaptive' with {name}=", f"leave {name} out"
        )
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
