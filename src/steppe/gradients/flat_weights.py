"""All trained weights as one flat vector, the form of clipped sums, noise and private gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from steppe.errors import MisuseError
from steppe.gradients.l2 import Strengths, strengths

Pulls = list[tuple[Tensor, float]]
"""Weights with their λ, where it is not 0."""


class FlatWeights:
    """The place of each trained weight in a flat vector, and its λ of the term λθ.

    Args:
        parameters: the weights by name, in the order of the vector.
        l2: one λ for all, or λ by name prefix; weights without a prefix get 0.
    """

    def __init__(self, parameters: Mapping[str, Tensor], l2: float | Strengths) -> None:
        self.parameters = dict(parameters)
        self.slices: dict[int, tuple[int, int]] = {}
        start = 0
        for parameter in self.parameters.values():
            self.slices[id(parameter)] = (start, start + parameter.numel())
            start += parameter.numel()
        self.numel = start
        self._first = next(iter(self.parameters.values()))
        self._sizes = [parameter.numel() for parameter in self.parameters.values()]
        self.pulls: Pulls = [
            (self.parameters[name], strength)
            for name, strength in strengths(l2, self.parameters).items()
            if strength
        ]
        self.strength_of = {id(parameter): strength for parameter, strength in self.pulls}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._first.device

    def split(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Every weight with its part of a flat vector."""
        # The safe split forbids its parts some changes in place, such as `p.grad += decay * p`.
        parts = flat.unsafe_split_with_sizes(self._sizes)
        for parameter, part in zip(self.parameters.values(), parts, strict=True):
            yield parameter, part.view(parameter.shape)

    def require_sizes(self) -> None:
        """Require that the sizes of the weights have not changed."""
        for (name, weight), size in zip(self.parameters.items(), self._sizes, strict=True):
            if weight.numel() != size:
                raise MisuseError(
                    f"weight {name!r}={weight.numel()} numbers: must keep the {size} that it had "
                    "when the loop was made private; make it private after the model has its final "
                    "weights."
                )

    def require_own(self, model: nn.Module) -> None:
        """Require that the weights are still the model's, and all that it trains."""
        own = {id(weight) for weight in model.parameters()}
        gone = [n for n, p in self.parameters.items() if p.requires_grad and id(p) not in own]
        if gone:
            raise MisuseError(
                f"weights={gone[:3]}: must stay in the model, but were replaced or removed since "
                "the loop was made private, so that only noise would move them; put the weights "
                "back, copy new values into them (with torch.no_grad(): weight.copy_(...)), or "
                "change the model before make_private."
            )
        new = [
            name
            for name, weight in model.named_parameters()
            if weight.requires_grad and id(weight) not in self.slices
        ]
        if new:
            raise MisuseError(
                f"weights={new[:3]}: must be among the trained ones, since they require a "
                "gradient, but are new since the loop was made private; freeze them with "
                "requires_grad_(False), or change the model before make_private."
            )

    def part_of(self, flat: Tensor, name: str) -> Tensor:
        """The part of a flat vector that belongs to a weight, in its shape."""
        parameter = self.parameters[name]
        start, end = self.slices[id(parameter)]
        return flat[start:end].view_as(parameter)
