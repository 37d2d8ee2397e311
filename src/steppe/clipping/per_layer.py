"""Place 4: a bound for each layer, from one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.clipping.clip import (
    NormClipper,
    PublicGradients,
    count_weights,
    finite_rows,
    refuse_public,
    row_norms,
)
from steppe.gradients import RecordGradients, representable
from steppe.utils import name_prefixes, validation

_REMEDY = "use 'equal', 'size' or a mapping such as {'features': 0.7, 'head': 0.3}"


@dataclass(frozen=True)
class PerLayer:
    """Clip each layer's part of a record's gradient on its own.

    A layer with large gradients does not dominate the others. The squares of the layers' bounds
    add up to the square of `bound`, which stays the sensitivity. McMahan et al., Learning
    Differentially Private Recurrent Language Models, 2018.

    Args:
        bound: C, the largest norm of all parts together.
        budget: how C² is divided. `equal`: every layer the same. `size`: by the number of
            weights, as the noise is. A mapping from name prefixes to shares makes a layer of
            everything under a prefix (`''` for the rest); the shares count relative to their sum.
            Without a mapping, a layer is the weights of one module.

    Guarantees:
        Adding or removing one record moves the clipped sum by at most `sensitivity` in l2 norm. A
        record whose gradient is not finite in one layer adds zero to all.

    Examples:
        >>> clip = PerLayer(1.0, {"body": 3, "head": 1})
        >>> clip.bounds({"body": ["body.weight"], "head": ["head.weight"]}, {})
        {'body': 0.8660254037844386, 'head': 0.5}
    """

    bound: float = 1.0
    budget: str | Mapping[str, float] | name_prefixes.Pairs = "equal"

    def __post_init__(self) -> None:
        bound = validation.positive("PerLayer.bound", self.bound, "a common start is 0.1 to 1")
        object.__setattr__(self, "bound", bound)
        if isinstance(self.budget, str):
            validation.one_of("PerLayer.budget", self.budget, ("equal", "size"), _REMEDY)
        else:
            shares = name_prefixes.pairs("PerLayer.budget", self.budget, validation.positive)
            object.__setattr__(self, "budget", shares)

    @property
    def sensitivity(self) -> float:
        """The largest l2 change of the clipped sum when one record is added or removed."""
        return self.bound

    @property
    def constant_noise(self) -> bool:
        """An answer is the gradient."""
        return True

    def begin(
        self, parameters: Mapping[str, Tensor], public: PublicGradients | None = None
    ) -> PerLayerClipper:
        """Start a run. It has no state."""
        refuse_public(public)
        layers = self.layers(parameters)
        sizes = {name: weight.numel() for name, weight in parameters.items()}
        return PerLayerClipper(parameters, layers, self.bounds(layers, sizes))

    def layers(self, names: Mapping[str, object]) -> dict[str, list[str]]:
        """The names of the weights, by layer."""
        if isinstance(self.budget, tuple):
            found = name_prefixes.match("PerLayer.budget", self.budget, names)
        else:
            found = {name: name.rpartition(".")[0] or name for name in names}
        layers: dict[str, list[str]] = {}
        for name, layer in found.items():
            if layer is None:
                raise validation.fail(
                    "PerLayer.budget", self.budget, f"gives {name!r} no share", "add a prefix of ''"
                )
            layers.setdefault(layer, []).append(name)
        return layers

    def bounds(self, layers: Mapping[str, list[str]], sizes: Mapping[str, int]) -> dict[str, float]:
        """The bound of every layer.

        Args:
            layers: names of weights, by layer.
            sizes: how many numbers each weight has.
        """
        if self.budget == "equal":
            shares = dict.fromkeys(layers, 1.0)
        elif self.budget == "size":
            shares = {
                layer: float(sum(sizes[name] for name in names)) for layer, names in layers.items()
            }
        else:
            shares = dict(self.budget)  # type: ignore[arg-type]  # pairs, since __post_init__
        largest = max(shares.values())  # shares may be of any size, and their sum too large
        total = math.fsum(share / largest for share in shares.values())
        return {layer: self.bound * math.sqrt(shares[layer] / largest / total) for layer in layers}


class PerLayerClipper(NormClipper):
    """A run's layers and their bounds."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        layers: Mapping[str, list[str]],
        bounds: Mapping[str, float],
    ) -> None:
        super().__init__(count_weights(parameters), self._factors)
        device = next(iter(parameters.values())).device
        each = torch.tensor(list(bounds.values()), dtype=torch.float64, device=device)
        self._bounds = each[:, None]
        self._layer_of = {
            id(parameters[name]): number
            for number, names in enumerate(layers.values())
            for name in names
        }
        # (layer, how many numbers) for the weights in their order.
        self._columns = [(self._layer_of[id(w)], w.numel()) for w in parameters.values()]

    def _factors(self, norms: Tensor) -> Tensor:
        """From norms to factors, both `(layers, records)`."""
        factors = (self._bounds / norms).clamp_(max=1.0)
        return torch.where(torch.isfinite(norms).all(0), factors, 0.0)

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        """Add Σᵢ factor gᵢ, layer by layer; return the norms over all layers."""
        parts = gradients.split(self._layer_of, len(self._bounds))
        squared = torch.stack([part.squared_norms() for part in parts])
        for part, factors in zip(parts, self._factors(squared.sqrt()), strict=True):
            part.add_(out, factors)
        return squared.sum(0).sqrt()

    def encode(self, gradients: Tensor) -> Tensor:
        """Every layer's part times its own factor, row by row."""
        parts = gradients.split([size for _, size in self._columns], dim=1)
        squared = self._bounds.new_zeros(len(self._bounds), len(gradients))
        for (layer, _), part in zip(self._columns, parts, strict=True):
            squared[layer] += row_norms(part).square()
        factors = representable(self._factors(squared.sqrt()), gradients.dtype)
        total = squared.sum(0)
        scaled = [
            finite_rows(part, total) * factors[layer][:, None]
            for (layer, _), part in zip(self._columns, parts, strict=True)
        ]
        return torch.cat(scaled, dim=1)
