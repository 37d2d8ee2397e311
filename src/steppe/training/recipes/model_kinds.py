"""Kinds of models, and the constants of the rules for each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from steppe.models import FixedFrontEnd
from steppe.points import SAT, Here, Point


@dataclass(frozen=True)
class ModelKind:
    """The constants of the rules for a kind of model.

    Args:
        name: a description.
        clip: C, and the reason.
        share: expected batch as a share of the population.
        largest: the largest expected batch.
        steps: number of steps.
        reach: lr · C / (1 − momentum) at a signal-to-noise ratio of 1.
        power: exponent of the signal-to-noise ratio in the rule for the reach.
        point: at which weights gradients are taken, and the reason.
    """

    name: str
    clip: tuple[float, str]
    share: float
    largest: int
    steps: int
    reach: float
    power: float
    point: tuple[Point, str]


_SMALL_CLIP = (0.1, "small, so that almost all gradients are clipped to the same norm")

# With batches this large the noise of the run hardly depends on the number of steps. On 10,000
# held-out records, 100 and 200 steps give the same accuracy on Fashion-MNIST; on MNIST 100 are too
# few. The reach is proportional to the signal, as theory says for convex problems.
HEAD = ModelKind(
    name="a linear head on fixed features",
    clip=_SMALL_CLIP,
    share=0.2,
    largest=16_384,
    steps=200,
    reach=600.0,
    power=1.0,
    point=(Here(), "plain DP-SGD: a convex problem has no sharp minima to avoid"),
)
NETWORK = ModelKind(
    name="a model that learns from the inputs themselves",
    clip=_SMALL_CLIP,
    share=1 / 30,
    largest=8_192,
    steps=600,
    reach=13.0,
    power=0.7,
    point=(SAT(0.03), "sharpness-aware at no privacy cost; improves networks, not linear models"),
)
# With a small clipping norm, a record that is nearly right has as much influence as one that is
# wrong, which drives all probabilities towards 0 and 1. On Adult at ε = 2, C = 1 has the accuracy
# of C = 0.1, but the loss of a logistic model is 0.39 instead of 0.61; C = 2 loses accuracy if
# there is more noise. See `python -m benchmarks.columns`.
COLUMNS = replace(
    NETWORK,
    name="a model of table columns",
    clip=(1.0, "about the norm of a per-example gradient: probabilities stay calibrated"),
)
# Regression losses are unbounded. Noise in the weights counts in full, so the reach is smaller, and
# errors grow from step to step if the rate is too high, so the curvature limits it.
NUMBERS = replace(
    COLUMNS,
    name="a regression",
    clip=(1.0, "about the norm of a per-example gradient: large errors count for more"),
    reach=3.0,
    point=(Here(), "plain DP-SGD: SAT was measured for classification only"),
)


def kind_of(fixed_features: bool, columns: bool, curvature: float | None) -> ModelKind:
    """The kind of a model, from the arguments of `choose`."""
    if curvature is not None:
        return NUMBERS
    return HEAD if fixed_features else COLUMNS if columns else NETWORK


def has_fixed_features(model: nn.Module) -> bool:
    """Whether only a linear layer on fixed features is trained."""
    return isinstance(model, FixedFrontEnd)
