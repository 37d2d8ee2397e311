"""Kinds of models, and the constants that were found for each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from steppe.models import ScatteringLinear
from steppe.points import SAT, Here, Point


@dataclass(frozen=True)
class Kind:
    """What the rules need to know about a kind of model.

    Args:
        name: in words.
        clip: C, and why.
        share: expected batch as a share of the population.
        largest: expected batch at most.
        steps: how many.
        reach: lr · C / (1 − momentum) where signal and noise are equal.
        power: how fast the best reach grows with the ratio of signal to noise.
        point: at which weights gradients are taken, and why.
    """

    name: str
    clip: tuple[float, str]
    share: float
    largest: int
    steps: int
    reach: float
    power: float
    point: tuple[Point, str]


_SMALL_CLIP = (0.1, "small, so that every record has the same say")

# With so large a share the noise of the run hardly depends on the number of steps. On 10,000
# held-out records 100 and 200 steps end alike on Fashion-MNIST; on MNIST 100 are too few. The reach
# is in proportion to the signal, as theory says for convex problems.
HEAD = Kind(
    name="a linear head on fixed features",
    clip=_SMALL_CLIP,
    share=0.2,
    largest=16_384,
    steps=200,
    reach=600.0,
    power=1.0,
    point=(Here(), "the problem is convex, so there are no sharp minima to avoid"),
)
NETWORK = Kind(
    name="a model that learns from the inputs themselves",
    clip=_SMALL_CLIP,
    share=1 / 30,
    largest=8_192,
    steps=600,
    reach=13.0,
    power=0.7,
    point=(SAT(0.03), "SAT costs no privacy; networks gain accuracy, linear models stay the same"),
)
# A small clip counts a record that is nearly right as much as one that is wrong, which drives all
# probabilities towards 0 and 1. On Adult at ε = 2, C = 1 is right as often as C = 0.1, but the loss
# of a logistic model is 0.39 instead of 0.61; C = 2 loses accuracy where there is more noise, see
# `python -m benchmarks.columns`.
COLUMNS = replace(
    NETWORK,
    name="a model of columns",
    clip=(1.0, "close to a typical gradient norm, which keeps probabilities calibrated"),
)
# Errors of numbers do not saturate as probabilities do: what noise adds to the weights counts in
# full, so that the reach is shorter, and too high a rate throws the errors further and further, so
# that the curvature caps it.
NUMBERS = replace(
    COLUMNS,
    name="a model of numbers",
    clip=(1.0, "close to a typical gradient norm, so that large errors count for more"),
    reach=3.0,
    point=(Here(), "SAT was measured for classes, and does not change linear models"),
)


def kind_of(fixed_features: bool, columns: bool, curvature: float | None) -> Kind:
    """The kind of a model, from what `choose` is told about it."""
    if curvature is not None:
        return NUMBERS
    return HEAD if fixed_features else COLUMNS if columns else NETWORK


def has_fixed_features(model: nn.Module) -> bool:
    """Whether only a linear layer on fixed features learns."""
    return isinstance(model, ScatteringLinear)
