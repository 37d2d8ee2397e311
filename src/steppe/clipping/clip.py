"""Place 4: the protocol of a clip.

A query of a batch releases one vector under one Gaussian. A clip defines a record's part of that
vector, the largest norm of this part, and how the noised mean of the parts becomes a gradient. It
adapts to released vectors only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from steppe.gradients import RecordGradients, representable
from steppe.utils import validation

State = dict[str, Tensor | float]
"""What a run remembers between steps; public, since it is made from released numbers."""


@dataclass(frozen=True)
class PublicGradients:
    """Gradients of public records at the current weights.

    Attributes:
        records: how many public records there are.
        gradients: yields them as `(some, weights)` matrices; every call starts anew.
    """

    records: int
    gradients: Callable[[], Iterator[Tensor]]


class Clipper(Protocol):
    """A clip at work in one run.

    Guarantees:
        Adding or removing one record moves what `add_` adds by at most the clip's sensitivity in l2
        norm, up to rounding; a record whose gradient is not finite adds exactly zero. `decode` and
        `prepare` see nothing but released vectors, weights and public records.
    """

    @property
    def width(self) -> int:
        """How many numbers a query releases."""

    @property
    def writes_out(self) -> bool:
        """Whether `add_` needs memory for every record's whole gradient."""

    @property
    def releases_gradients(self) -> bool:
        """Whether an answer is the gradient itself: nothing to prepare, nothing to decode."""

    def prepare(self) -> None:
        """Called before every query, at the weights of the query."""

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        """Add the records' parts to a buffer of `width` numbers; return the records' norms."""

    def encode(self, gradients: Tensor) -> Tensor:
        """The parts of all records, `(B, weights)` to `(B, width)`: slowly defines `add_`."""

    def decode(self, answer: Tensor) -> Tensor:
        """The gradient in the noised sum of all parts over the expected batch."""

    def state(self) -> State:
        """The state that later queries depend on."""

    def load(self, state: State) -> None:
        """Load what `state` returned."""


@runtime_checkable
class Clip(Protocol):
    """A clip: bounds a record's part of the released vector. It contains public constants alone.

    Guarantees:
        Adding or removing one record moves the vector that a query releases by at most
        `sensitivity` in l2 norm, before its noise, whatever was released before.
    """

    @property
    def sensitivity(self) -> float:
        """The largest l2 change of the released vector when one record is added or removed."""

    @property
    def constant_noise(self) -> bool:
        """Whether the noise in a gradient is a constant of the plan."""

    def begin(
        self, parameters: Mapping[str, Tensor], public: PublicGradients | None = None
    ) -> Clipper:
        """Start a run.

        Args:
            parameters: the trained weights by name.
            public: gradients of public records, if there are any.
        """


class NormClip(ABC):
    """A clip that scales gradients to one bound: an answer is the gradient.

    Attributes:
        bound: the largest norm of a record's part.
    """

    bound: float

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
    ) -> NormClipper:
        """Start a run. It has no state."""
        refuse_public(public)
        return NormClipper(count_weights(parameters), self.factors)

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied by, from its norm; NaN where that is NaN."""


class NormClipper:
    """Multiply every record's gradient by a factor that depends on its norm alone.

    Args:
        width: the number of weights.
        factors: from norms to factors; 0 or NaN where the norm is not finite.
    """

    writes_out = False
    releases_gradients = True

    def __init__(self, width: int, factors: Callable[[Tensor], Tensor]) -> None:
        self.width = width
        self.factors = factors

    def prepare(self) -> None:
        """Nothing depends on the weights."""

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        """Add Σᵢ factorᵢ gᵢ; return the norms."""
        norms = gradients.squared_norms().sqrt()
        gradients.add_(out, self.factors(norms))
        return norms

    def encode(self, gradients: Tensor) -> Tensor:
        """factorᵢ gᵢ, row by row."""
        norms = row_norms(gradients)
        factors = representable(self.factors(norms), gradients.dtype)
        return finite_rows(gradients, norms) * factors[:, None]

    def decode(self, answer: Tensor) -> Tensor:
        """The answer is the gradient."""
        return answer

    def state(self) -> State:
        """There is no state."""
        return {}

    def load(self, state: State) -> None:
        """There is no state."""


def movable_bound(name: str, value: float) -> float:
    """A bound that gradients are divided by: a float32 number, and so is its inverse."""
    value = validation.positive(name, value)
    if not 1e-30 <= value <= 1e30:
        rule = "must lie between 1e-30 and 1e30"
        raise validation.fail(name, value, rule, "a common choice is 1e-3 to 1")
    return value


def row_norms(gradients: Tensor) -> Tensor:
    """The l2 norm of every row, in float64."""
    return torch.linalg.vector_norm(gradients.double(), dim=1)


def finite_rows(gradients: Tensor, norms: Tensor) -> Tensor:
    """The rows, with zeros where the norm is not finite, because 0 × NaN is NaN."""
    return torch.where(torch.isfinite(norms)[:, None], gradients, 0.0)


def count_weights(parameters: Mapping[str, Tensor]) -> int:
    """How many numbers the weights have together."""
    return sum(parameter.numel() for parameter in parameters.values())


def refuse_public(public: PublicGradients | None) -> None:
    """Reject public records for a clip that does not use them."""
    if public is not None:
        raise validation.fail(
            "public",
            f"{public.records} records",
            "this clip learns nothing from public records",
            "use GEP, or leave `public` out",
        )
